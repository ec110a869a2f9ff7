"""Group mode: a query that shares a consumer group with others."""
