"""Lets Spark find ``format("millstream")``: it looks for a ``DefaultSource`` in every package named ``pyspark_*``."""

from millstream.spark.found import DefaultSource

__all__ = ["DefaultSource"]
