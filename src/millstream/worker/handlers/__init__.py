"""From an entry to a call of the user's function, and from what it returns or raises to an outcome."""
