"""A local Spark session, what Java says while it starts, and one SQL query."""
