"""PrimitiveSkill: a robot gripper arranges things on a table by pick, place and push."""
