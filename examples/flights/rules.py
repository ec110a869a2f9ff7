"""The rules of the demo, said once: the workers apply them, ``truth.py`` says what they must lead to."""

ALERT_MINUTES = 60
"""A flight that leaves at least so many minutes late raises an alert."""

FLAKY_DESTINATION = "HNL"
"""Honolulu's station never answers the first time: those flights fail once and are retried."""

TOP_ROUTES = 10
"""Length of the table of routes that the pipeline writes back to a stream."""

WORKERS = 3
"""Processes in the consumer group."""

GROUP = "alerts"
"""Name of the consumer group."""

MIN_IDLE_MS = 2_000
"""How long a pending entry must be idle before another worker may claim it, in milliseconds."""

MAX_DELIVERIES = 5
"""Deliveries after which an event that keeps failing becomes a dead letter."""
