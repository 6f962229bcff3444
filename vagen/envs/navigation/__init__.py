"""Navigation: find a thing in furnished rooms, seen from where one stands."""
