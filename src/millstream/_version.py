"""The version of this package. This file imports nothing, so every part may import it."""

__version__ = "0.1.0"
