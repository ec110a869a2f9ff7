"""The pages about Spark: its queries, one of them, and the archive."""
