"""Navigation: find an object in furnished rooms, in first person."""
