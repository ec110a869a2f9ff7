"""The pipelines of an app at work: one Spark driver for all of them, each query watched and started again by itself."""
