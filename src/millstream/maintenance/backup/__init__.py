"""A data directory copied while its owner goes on, and made again, also as of a moment."""
