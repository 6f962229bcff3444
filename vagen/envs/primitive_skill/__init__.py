"""PrimitiveSkill: a robot gripper arranges objects on a table by pick, place and push."""
