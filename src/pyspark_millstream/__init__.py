"""Lets Spark find ``format("millstream")``: it looks for a ``DefaultSource`` in every package named ``pyspark_*``."""

from millstream.spark.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
