"""All planted faults, in the order of their numbers."""

from faults import (
    cli_faults,
    engine_faults,
    following_faults,
    full_disk_faults,
    log_faults,
    maintenance_faults,
    migrate_faults,
    monitoring_faults,
    object_faults,
    plain_faults,
    replication_faults,
    rewrite_faults,
    script_faults,
    server_faults,
    snapshot_faults,
    spark_faults,
    worker_faults,
)

FAULTS = (
    *log_faults.FAULTS,
    *rewrite_faults.FAULTS,
    *replication_faults.FAULTS,
    *following_faults.FAULTS,
    *snapshot_faults.FAULTS,
    *maintenance_faults.FAULTS,
    *server_faults.FAULTS,
    *plain_faults.FAULTS,
    *script_faults.FAULTS,
    *full_disk_faults.FAULTS,
    *engine_faults.FAULTS,
    *worker_faults.FAULTS,
    *spark_faults.FAULTS,
    *object_faults.FAULTS,
    *migrate_faults.FAULTS,
    *cli_faults.FAULTS,
    *monitoring_faults.FAULTS,
)

QUICK = (
    "durable-before-fsync",
    "failed-sync-counts",
    "reply-before-durable",
    "released-entry-behind-the-owned",
    "unlimited-retries",
    "first-batch-not-repeated",
)
"""Those that every run of the tests plants, one of each part and each ended in seconds."""
