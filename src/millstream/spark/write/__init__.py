"""Writing DataFrames to streams, once: staged by tasks, made visible by the driver."""
