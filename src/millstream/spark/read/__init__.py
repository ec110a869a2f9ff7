"""Reading entries as DataFrames: planned at the driver, read by tasks."""
