"""A year of real flights through stream, workers and Spark, checked; reaches its server only through a URL."""
