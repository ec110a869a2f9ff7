"""The two tiers of tests: ``make test`` runs the first in minutes, ``make test-all`` and CI run both.

A test of the second tier is marked ``full``. It stands there for its time, and because the first tier touches the same
code: CI finds on the same day what it would have found. tests/README.md names the promises that only the second holds.
"""

import pytest

FULL = (
    # started programs and whole systems: minutes of Java, browsers, other languages, installations
    "tests/architecture/test_installing.py",
    "tests/clients/",
    "tests/web/test_browser.py",
    "tests/dashboards/",
    "tests/examples/",
    "tests/deploy/",
    "tests/docs/test_how_to.py",
    "tests/docs/test_tutorial.py",
    "tests/pipelines/",
    "tests/spark/archive/test_archive.py::test_killed_at_every_point_while_others_write_and_read",
    "tests/spark/archive/test_bad_shapes.py",
    "tests/spark/archive/test_objects.py",
    "tests/spark/archive/test_objects_kills.py",
    "tests/spark/archive/test_tables.py",
    "tests/spark/group/test_group_spark.py",
    "tests/spark/read/test_triggers.py",
    "tests/spark/test_at_home.py",
    "tests/worker/test_tutorial.py",
    # the same tasks again, as a person on call does them by keys and links
    "tests/cli/test_on_call.py",
    "tests/cli/test_completing.py::test_bash_offers_what_is_on_the_server",
    "tests/web/test_on_call.py",
    # the second half of a promise of which the first tier tries the first: further cases, whole files and whole sites
    "tests/architecture/test_core.py::test_a_wheel_has_the_native_core",
    "tests/architecture/test_site.py::test_nothing_is_loaded_from_elsewhere",
    "tests/cli/test_dead.py::test_no_letter_ends_a_command[memory_server",
    "tests/cli/test_report.py::test_a_changed_report_ends_nobody",
    "tests/embedded/test_users.py::test_plugin_serves_users_tests[-p",
    "tests/engine/test_no_memory.py",
    "tests/migrate/test_commandfile.py::test_a_file_that_lost_commands_is_refused[False",
    "tests/node/test_batch.py::test_commands_run_together_do_what_they_do_one_by_one[2",
    "tests/node/test_batch.py::test_commands_run_together_do_what_they_do_one_by_one[3",
    "tests/node/test_leaks.py",
    "tests/persistence/test_damage.py::test_scan_of_a_log_cut_at_every_byte_finds_the_longest_whole_prefix",
    "tests/scripting/test_plain.py::test_nothing_tells_whether_a_scripts_commands_were_plain[1",
    "tests/scripting/test_plain.py::test_nothing_tells_whether_a_scripts_commands_were_plain[2",
    "tests/security/test_tls.py::test_spark_reads_and_writes_by_a_user_with_few_rights",
    "tests/spark/session/test_local.py::test_a_master_that_is_none_is_named",
    "tests/spark/test_spark.py::test_a_stopped_query_goes_on_where_it_was",
    "tests/worker/subscriber/test_contract.py::test_many_deleted_entries_are_dropped_soon[redis-16",
    "tests/worker/subscriber/test_contract.py::test_many_deleted_entries_are_dropped_soon[millstream-16",
    # kills, crashes and full disks by the dozen: each has a campaign with thousands
    "tests/maintenance/test_backup.py::test_data_is_set_aside_in_one_step",
    "tests/maintenance/test_backup.py::test_killed_at_each_step",
    "tests/node/test_rewriting.py::test_a_killed_parent_loses_nothing_and_takes_its_child_along",
    "tests/spark/archive/test_replay.py::test_killed_and_run_again",
    "tests/node/test_crash.py",
    "tests/persistence/test_crash.py",
    "tests/server/disk/",
    "tests/server/load/test_crowds.py",
    "tests/server/load/test_kills.py",
    "tests/server/load/test_plain_kills.py",
    "tests/server/load/test_soak.py",
    "tests/worker/process/test_blocking.py",
    "tests/worker/process/test_hard_limit.py::test_a_run_beyond_the_limit_is_a_crash_of_its_entry_alone",
    "tests/worker/process/test_processes.py::test_a_worker_killed_off_the_main_road_loses_nothing",
    "tests/worker/process/test_processes.py::test_a_worker_killed_anywhere_loses_nothing[millstream",
    "tests/worker/process/test_reload.py",
    "tests/worker/process/test_processes.py::test_other_entries_do_not_pay_for_one_that_kills_its_process",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[millstream",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-block",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-exit-2",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-exit-5",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-kill-5",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-libc",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-signal",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-dismissed",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-config",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-time",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-another",
    "tests/worker/process/test_spare.py::test_an_entry_ends_one_worker_and_one_spare[redis-interrupt",
    "tests/worker/process/test_spare.py::test_a_kill_from_outside_makes_no_dead_letter[millstream",
    "tests/worker/process/test_spare.py::test_memory_that_runs_out_ends_one_worker_and_one_spare[millstream",
    "tests/worker/process/test_spare.py::test_no_worker_takes_an_entry_back_from_a_spare_that_stands_still",
    "tests/worker/process/test_spare.py::test_a_spare_that_an_operator_stops_makes_no_dead_letter[millstream",
    "tests/worker/process/test_spare.py::test_a_stop_of_the_supervisor_is_no_crash_of_what_ran[millstream",
    "tests/worker/process/test_spare.py::test_an_entry_that_kills_its_supervisor_is_dead_after_its_limit",
    "tests/worker/process/test_spare.py::test_deadly_entries_that_come_one_by_one_end_no_supervisor",
    "tests/worker/process/test_spare.py::test_other_groups_go_on_while_an_entry_blocks_the_spare",
    "tests/worker/process/test_spare.py::test_the_spare_ends_after_its_work",
    "tests/worker/process/test_spare.py::test_without_a_spare_a_worker_runs_them_itself",
    "tests/worker/process/test_storm.py",
    "tests/worker/subscriber/test_isolation.py::test_a_killer_in_a_batch_of_fifty_is_dead_after_two_ends_and_nobody_else_pays",
    "tests/worker/later/test_attacks.py::test_a_changed_timetable_holds_at_once",
    "tests/worker/later/test_attacks.py::test_a_key_of_a_wrong_type_stops_no_other_schedule",
    "tests/worker/later/test_attacks.py::test_nothing_fires_after_a_removal",
    "tests/worker/later/test_schedules.py::test_a_firing_is_skipped_while_an_earlier_one_runs",
    "tests/worker/test_failures_told.py::test_no_text_of_others_passes_for_a_line_of_the_log",
    "tests/worker/later/test_attacks.py::test_a_server_that_lost_its_data_learns_of_the_stream_again",
    # several real servers at a time: Sentinels, clusters, chains of replicas, migrations
    "tests/client/test_cluster.py",
    "tests/client/test_frozen.py",
    "tests/client/test_sentinel.py",
    "tests/commands/test_collections_live.py",
    "tests/conformance/test_lag_live.py",
    "tests/maintenance/test_live.py",
    "tests/migrate/test_moving.py",
    "tests/migrate/test_round_trip.py",
    "tests/replication/campaigns/",
    "tests/replication/test_copy_faults.py",
    "tests/replication/test_failover.py",
    "tests/replication/test_log_copy.py",
    "tests/replication/test_redis_follows.py",
    "tests/replication/test_tail.py",
    # tests of the tests, and of versions beside each other
    "tests/faults/",
)

SPARK = frozenset(
    f"tests/spark/{name}"
    for name in (
        "test_spark.py::test_a_batch_read_is_xrange",
        "test_spark.py::test_a_stopped_query_goes_on_where_it_was",
        "write/test_sink_spark.py::test_a_query_copies_each_entry_once_and_a_repeated_batch_adds_nothing",
        "group/test_group_spark.py",
        "read/test_triggers.py",
        "test_at_home.py::test_a_table_lasts_and_is_read_and_streamed",
        "test_at_home.py::test_filters_choose_what_is_read_of_a_stream",
        "test_at_home.py::test_hashes_that_come_later_are_joined_too",
        "test_at_home.py::test_headers_travel_from_an_app_through_spark_to_an_app",
        "test_at_home.py::test_avro_payloads_of_a_stream_are_columns",
    )
)
"""Of each kind one that goes through Spark's own processes; ``.ci/oldest-spark`` runs these and one more."""

JOBS = tuple(f"tests/worker/{room}/" for room in ("jobs", "later", "limits", "outbox", "partitions"))
"""Rooms whose tests run on Redis in the first tier, and on Millstream too in the second: scripts do their work."""

OTHER_SERVERS = frozenset({"redis6", "redis8", "valkey"})
"""Further versions of a server that a test has run on already."""


def is_full(file: str) -> bool:
    """Report a file all of whose tests are in the second tier."""
    return file.startswith(tuple(name for name in FULL if "::" not in name))


def mark(item: pytest.Function) -> None:
    """Put a test into its tier, and one of each kind of Spark's into the selection for the oldest PySpark."""
    file, name = item.nodeid.split("::", 1)
    is_spark = item.get_closest_marker("spark") is not None
    is_core = is_spark and bool({file, f"{file}::{name.partition('[')[0]}"} & SPARK)
    if is_core:
        item.add_marker(pytest.mark.spark_core)
    given = getattr(item, "callspec", None)
    others = given is not None and any(
        isinstance(value, str) and value in OTHER_SERVERS for value in given.params.values()
    )
    others = others or (file.startswith(JOBS) and given is not None and "millstream" in given.params.values())
    if others or item.nodeid.startswith(FULL) or (is_spark and not is_core):
        item.add_marker(pytest.mark.full)
