"""Subcommands that run on Spark or ask about it: archive, replay, recover, spark, sql."""
