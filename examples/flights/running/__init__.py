"""A run: the processes, what is done to them, and what a person sees meanwhile."""
