"""Millstream: event streams in Python.

The names here are the worker's; the other parts are imported by their own names (``millstream.client``,
``millstream.spark``). Everything is loaded on first use, so ``import millstream`` costs next to nothing.
"""

__version__ = "0.1.0"
