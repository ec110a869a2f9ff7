"""Groups: rates, positions, and changes of groups and their consumers."""
