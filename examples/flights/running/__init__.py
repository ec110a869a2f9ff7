"""A run: its processes, the kills, and the display of its progress."""
