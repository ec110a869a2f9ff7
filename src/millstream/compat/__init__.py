"""Names of other libraries on our behaviour, so that a program can be moved by its imports first."""
