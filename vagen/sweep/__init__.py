"""Many trainings that differ in a few options: which, how many at a time, and which end early."""
