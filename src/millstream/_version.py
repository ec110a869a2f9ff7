"""The version of this package, in a file that imports nothing: what any part may name."""

__version__ = "0.1.0"
