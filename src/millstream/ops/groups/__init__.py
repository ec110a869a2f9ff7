"""Groups: rates, places, and changes of them and of their consumers."""
