"""Subcommands that run on Spark or report about it: archive, replay, recover, spark, sql."""
