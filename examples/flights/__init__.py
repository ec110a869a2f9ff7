"""A year of real flights through a stream, workers and Spark, with checks; it reaches its server only by a URL."""
