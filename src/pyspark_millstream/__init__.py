"""Lets Spark find ``format("millstream")``: it imports every package named ``pyspark_*`` that has a ``DefaultSource``."""

from millstream.spark.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
