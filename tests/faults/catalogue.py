"""All planted faults: about one for each promise of docs/promises.toml that a fault can break."""

from faults import log_faults, replication_faults, server_faults, spark_faults, tier_faults, worker_faults

FAULTS = (
    *log_faults.FAULTS,
    *server_faults.FAULTS,
    *tier_faults.FAULTS,
    *replication_faults.FAULTS,
    *worker_faults.FAULTS,
    *spark_faults.FAULTS,
)

QUICK = (
    "durable-before-fsync",
    "failed-sync-counts",
    "reply-before-durable",
    "released-entry-behind-the-owned",
    "unlimited-retries",
    "first-batch-not-repeated",
)
"""Faults that every test run plants: one of each part, each taking seconds."""
