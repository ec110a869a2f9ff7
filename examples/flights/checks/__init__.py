"""What must have come out, what did, and whether the two agree."""
