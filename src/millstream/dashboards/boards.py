"""The dashboards, as ``boards.toml`` describes them. Pure."""

import tomllib
from typing import Any

from millstream.dashboards.grafana import Dashboard, Panel, Variable
from millstream.paths import packaged


def _board(uid: str, title: str, text: str, variables: list[dict[str, str]], panels: list[dict[str, Any]]) -> Dashboard:
    return Dashboard(uid, title, text, [Variable(**each) for each in variables], [Panel(**each) for each in panels])


def _by_handler(counter: str, more: str = "") -> str:
    """Events a second of a counter, for each handler; ``more`` are further labels to tell apart."""
    return f"sum by (handler{more}) (rate({counter}{_HANDLER}{_RATE}))"


def _of_server(counter: str) -> str:
    return f"sum by (instance) (rate({counter}{_SERVER}{_RATE}))"


_HOLDERS = f"max by (stream, group, consumer) (redis_stream_group_consumer_messages_pending{_GROUP})"
_WHICH_GROUP = "{{stream}} / {{group}}"

STREAMS = Dashboard(
    "millstream-streams",
    "Millstream: streams and groups",
    "Lag of each group in entries and in time, pending entries, and dead letters.",
    (Variable("stream", "redis_stream_length"), Variable("group", 'redis_stream_group_consumers{stream=~"$stream"}')),
    (
        Panel(
            "Lag in entries",
            "Entries not delivered to the group yet. A gap is a lag that the server does not know: docs/lag.md.",
            [(_by_group("redis_stream_group_lag"), _WHICH_GROUP)],
        ),
        Panel(
            "Lag in time",
            "Age of the oldest entry not delivered; known also where the lag in entries is not.",
            [(_by_group("millstream_stream_group_oldest_undelivered_age_seconds"), _WHICH_GROUP)],
            "s",
            alarm=300,
        ),
        Panel(
            "Oldest pending entry",
            "Age of the oldest entry that was delivered and not acknowledged.",
            [(_by_group("millstream_stream_group_oldest_pending_age_seconds"), _WHICH_GROUP)],
            "s",
            alarm=3600,
        ),
        Panel(
            "Pending entries",
            "Delivered and not acknowledged; unowned ones were released and have no consumer.",
            [
                (_by_group("redis_stream_group_messages_pending"), _WHICH_GROUP),
                (_by_group("millstream_stream_group_unowned_messages"), _WHICH_GROUP + " unowned"),
            ],
        ),
        Panel(
            "Added a second",
            "Entries added to each stream.",
            [(f"max by (stream) (rate(redis_stream_entries_added_total{_STREAM}{_RATE}))", "{{stream}}")],
            "ops",
        ),
        Panel(
            "Delivered a second",
            "Entries delivered to each group for the first time.",
            [(f"max by (stream, group) (rate(redis_stream_group_entries_read{_GROUP}{_RATE}))", _WHICH_GROUP)],
            "ops",
        ),
        Panel(
            "Dead letters waiting",
            "Entries in dead-letter streams: `millstream dead ls` shows the reasons.",
            [("max by (stream) (millstream_dead_letters_waiting)", "{{stream}}")],
        ),
        Panel(
            "Entries overdue",
            "Seconds for which the first entry published for later has been due: more than a second means that no "
            "worker moves it.",
            [(f"max by (stream) (millstream_later_overdue_seconds{_STREAM})", "{{stream}}")],
            "s",
            alarm=60,
        ),
        Panel(
            "Entries for later",
            "Entries that wait for their time in each stream.",
            [(f"max by (stream) (millstream_later_waiting{_STREAM})", "{{stream}}")],
        ),
        Panel(
            "Length",
            "Entries in each stream; one that only grows is never trimmed.",
            [(f"max by (stream) (redis_stream_length{_STREAM})", "{{stream}}")],
        ),
        Panel(
            "Lag unknown",
            "Groups with a lag unknown to the server: `millstream group show` explains it.",
            [(f"{_by_group('millstream_stream_group_lag_known')} == 0", _WHICH_GROUP)],
            kind="table",
        ),
        Panel(
            "Who holds most",
            "Consumers with the most pending entries; not there with `?consumers=off`.",
            [(f"topk(10, {_HOLDERS} > 0)", "{{consumer}}")],
            kind="table",
        ),
    ),
)

_FAILED = f'sum by (handler) (rate(millstream_handler_runs_total{_HANDLER[:-1]}, result="failed"}}{_RATE}))'
_BUCKETS = _by_handler("millstream_handler_duration_seconds_bucket", ", le")
_QUANTILES = ((0.5, "median"), (0.99, "p99"))

WORKERS = Dashboard(
    "millstream-workers",
    "Millstream: workers",
    "Handlers: running entries, durations, failures, and stuck runs.",
    (
        Variable("handler", "millstream_worker_slots"),
        Variable("stream", 'millstream_worker_slots{handler=~"$handler"}'),
        Variable("group", 'millstream_worker_slots{handler=~"$handler"}'),
    ),
    (
        Panel(
            "Processes",
            "Worker processes that answer, for each handler.",
            [(f"count by (handler) (millstream_worker_slots{_HANDLER})", "{{handler}}")],
        ),
        Panel(
            "Longest run",
            "Duration of the longest present run. One that only grows is stuck, or a very long job.",
            [(f"max by (handler) (millstream_worker_longest_run_seconds{_HANDLER})", "{{handler}}")],
            "s",
            alarm=900,
        ),
        Panel(
            "Outcomes a second",
            "Deliveries by outcome.",
            [(_by_handler("millstream_deliveries_total", ", outcome"), "{{handler}} {{outcome}}")],
            "ops",
        ),
        Panel(
            "Share of runs that failed",
            "Of all runs of the handler.",
            [(f"{_FAILED} / {_by_handler('millstream_handler_runs_total')}", "{{handler}}")],
            "percentunit",
            alarm=0.1,
        ),
        Panel(
            "Duration of runs",
            "Median and 99th percentile; a batch is one run.",
            [(f"histogram_quantile({share}, {_BUCKETS})", "{{handler}} " + name) for share, name in _QUANTILES],
            "s",
        ),
        Panel(
            "Entries in hand",
            "Entries delivered without a stored outcome, next to the maximum that may run at once.",
            [
                (f"sum by (handler) (millstream_worker_in_hand{_HANDLER})", "{{handler}} in hand"),
                (f"sum by (handler) (millstream_worker_slots{_HANDLER})", "{{handler}} slots"),
                (f"sum by (handler) (millstream_worker_buffered{_HANDLER})", "{{handler}} not begun"),
            ],
        ),
        Panel(
            "Received a second",
            "New entries, and those claimed from others or delivered again.",
            [(_by_handler("millstream_entries_received_total", ", kind"), "{{handler}} {{kind}}")],
            "ops",
        ),
        Panel(
            "Dead letters a second",
            "Entries given up, by reason.",
            [(_by_handler("millstream_dead_letters_total", ", reason"), "{{handler}} {{reason}}")],
            "ops",
        ),
        Panel(
            "Runs of entries delivered before",
            "Such a run may repeat an effect. Many: handlers take longer than min_idle_time, or workers crash.",
            [
                (_by_handler("millstream_suspect_runs_total"), "{{handler}} again"),
                (_by_handler("millstream_outcomes_fenced_total"), "{{handler}} refused, since another had the entry"),
            ],
            "ops",
        ),
        Panel(
            "Connection for reading",
            "Seconds since the last answer, and the number of lost connections.",
            [
                (f"max by (handler) (millstream_reader_idle_seconds{_HANDLER})", "{{handler}} idle"),
                (_by_handler("millstream_reader_reconnects_total"), "{{handler}} reconnects a second"),
            ],
            "s",
        ),
        Panel(
            "Paused",
            "Paused handlers: `millstream worker ls` shows the reasons.",
            [(f"max by (handler) (millstream_worker_paused{_HANDLER}) > 0", "{{handler}}")],
            kind="table",
        ),
        Panel(
            "Groups and consumers",
            "Groups created again, and dead consumers removed.",
            [
                (_by_handler("millstream_groups_created_total"), "{{handler}} groups made"),
                (_by_handler("millstream_consumers_reaped_total"), "{{handler}} consumers removed"),
            ],
            "ops",
        ),
    ),
)

SERVER = Dashboard(
    "millstream-server",
    "Millstream: server",
    "Load, memory, clients and the log on disk, of a Millstream or a Redis, by redis_exporter.",
    (Variable("instance", "redis_up"),),
    (
        Panel("Up", "1 while it answers.", [(f"redis_up{_SERVER}", "{{instance}}")], "bool_yes_no", "stat"),
        Panel("Uptime", "Since its start.", [(f"redis_uptime_in_seconds{_SERVER}", "{{instance}}")], "s", "stat"),
        Panel(
            "Commands a second",
            "Of all clients.",
            [(_of_server("redis_commands_processed_total"), "{{instance}}")],
            "ops",
        ),
        Panel(
            "Time by command",
            "Processor seconds a second; the commands that take most of the server.",
            [
                (
                    f"topk(10, sum by (instance, cmd) (rate(redis_commands_duration_seconds_total{_SERVER}{_RATE})))",
                    "{{cmd}}",
                )
            ],
            "percentunit",
        ),
        Panel(
            "Clients",
            "Connected, waiting in a blocking command, refused.",
            [
                (f"redis_connected_clients{_SERVER}", "{{instance}} connected"),
                (f"redis_blocked_clients{_SERVER}", "{{instance}} waiting"),
                (_of_server("redis_rejected_connections_total"), "{{instance}} refused a second"),
            ],
        ),
        Panel(
            "Memory",
            "Resident memory of the process.",
            [(f"redis_memory_used_rss_bytes{_SERVER}", "{{instance}}")],
            "bytes",
        ),
        Panel(
            "Network",
            "Bytes a second.",
            [
                (_of_server("redis_net_input_bytes_total"), "{{instance}} in"),
                (_of_server("redis_net_output_bytes_total"), "{{instance}} out"),
            ],
            "Bps",
        ),
        Panel(
            "Log on disk",
            "Size of the log, and of the snapshot in it; it falls when the log is rewritten.",
            [
                (f"redis_aof_current_size_bytes{_SERVER}", "{{instance}} log"),
                (f"redis_aof_base_size_bytes{_SERVER}", "{{instance}} snapshot"),
            ],
            "bytes",
        ),
        Panel(
            "Writes are taken",
            "No while the disk is full or nearly so: writes are refused, reads go on.",
            [(f"redis_aof_last_write_status{_SERVER}", "{{instance}}")],
            "bool_yes_no",
            "stat",
        ),
        Panel(
            "Slow syncs",
            "Syncs of the log that took longer than two seconds, in ten minutes; there should be none.",
            [(f"increase(redis_aof_delayed_fsync{_SERVER}[10m])", "{{instance}}")],
            alarm=1,
        ),
    ),
)

PIPELINES = Dashboard(
    "millstream-pipelines",
    "Millstream: pipelines on Spark",
    "State, lag and batch times of each query.",
    (Variable("pipeline", "millstream_pipeline_up"),),
    (
        Panel(
            "Running",
            "No while its query does not run.",
            [(f"millstream_pipeline_up{_PIPELINE}", "{{pipeline}}")],
            "bool_yes_no",
            "stat",
        ),
        Panel(
            "Started again",
            "In an hour; a failed query is restarted automatically, and its error is in the log.",
            [(f"increase(millstream_pipeline_restarts_total{_PIPELINE}[1h])", "{{pipeline}}")],
            alarm=3,
        ),
        Panel(
            "Lag in entries",
            "Entries in its streams and not in a finished batch.",
            [(f"max by (pipeline) (millstream_pipeline_lag{_PIPELINE})", "{{pipeline}}")],
        ),
        Panel(
            "Rows a second",
            "Read over the interval, and what the last batch made.",
            [
                (f"sum by (pipeline) (rate(millstream_pipeline_rows_total{_PIPELINE}{_RATE}))", "{{pipeline}} read"),
                (f"max by (pipeline) (millstream_pipeline_rows_per_second{_PIPELINE})", "{{pipeline}} last batch"),
            ],
            "ops",
        ),
        Panel(
            "Time of the last batch",
            "Longer than its trigger: the query falls behind.",
            [(f"max by (pipeline) (millstream_pipeline_last_batch_seconds{_PIPELINE})", "{{pipeline}}")],
            "s",
        ),
        Panel(
            "Rows of the last batch",
            "Entries of one batch.",
            [(f"max by (pipeline) (millstream_pipeline_last_batch_rows{_PIPELINE})", "{{pipeline}}")],
        ),
    ),
)

BOARDS = (STREAMS, WORKERS, SERVER, PIPELINES)
