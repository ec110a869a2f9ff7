"""The rules of the demo: the workers apply them, and ``truth.py`` computes the expected results from them."""

ALERT_MINUTES = 60
"""Minutes of delay from which a flight raises an alert."""

FLAKY_DESTINATION = "HNL"
"""Destination whose flights fail at the first delivery and are retried."""

TOP_ROUTES = 10
"""Length of the table of routes that the pipeline writes back to a stream."""

WORKERS = 3
"""Processes in the consumer group."""

GROUP = "alerts"
"""Name of the consumer group."""

MIN_IDLE_MS = 2_000
"""Milliseconds of idle time after which another worker may claim a pending entry."""

MAX_DELIVERIES = 5
"""Deliveries after which an event that keeps failing becomes a dead letter."""
