"""The two tiers of tests: ``make test`` runs the first in minutes, ``make test-all`` and CI run both.

A test of the second tier is marked ``full``. It is there for its time, and because the first tier covers the same
code: CI finds on the same day what it would have found. tests/README.md names the promises that only the second holds.
"""

import pytest

FULL = (
    # started programs and whole systems: minutes of Java, browsers, other languages, installations
    "tests/architecture/test_installing.py",
    "tests/clients/",
    "tests/web/test_browser.py",
    "tests/web/test_history.py",
    "tests/web/test_layout.py",
    "tests/dashboards/",
    "tests/examples/",
    "tests/deploy/",
    "tests/docs/test_how_to.py",
    "tests/docs/test_sentinel_page.py",
    "tests/docs/test_thirty_days.py",
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
    "tests/web/test_on_call.py",
    # the second half of a promise of which the first tier tries the first: further cases, whole files and whole sites
    "tests/cli/test_alert.py::test_a_watcher_keeps_and_sends_alerts_until_it_is_stopped[memory_server",
    "tests/cli/test_dead.py::test_no_letter_ends_a_command[memory_server",
    "tests/embedded/test_tier.py::test_a_kill_loses_nothing[",
    "tests/engine/test_four_twins.py::test_random_steps[1",
    "tests/engine/test_no_memory.py",
    "tests/migrate/test_commandfile.py::test_a_file_that_lost_commands_is_refused[False",
    "tests/node/test_batch.py::test_commands_with_some_rights_do_what_they_do_one_by_one[",
    "tests/node/test_leaks.py",
    "tests/node/test_spill_crash.py::test_a_crash_at_any_operation[",
    "tests/ops/history/test_writing.py::test_tables_that_are_long_when_uncompressed_end_a_reading[redis",
    "tests/scripting/test_plain.py::test_nothing_tells_whether_a_scripts_commands_were_plain[1",
    "tests/scripting/test_plain.py::test_nothing_tells_whether_a_scripts_commands_were_plain[2",
    "tests/security/test_tls.py::test_spark_reads_and_writes_by_a_user_with_few_rights",
    "tests/spark/archive/test_one_table.py::test_a_killed_job_leaves_each_entry_once[iceberg",
    "tests/spark/archive/test_one_table.py::test_a_manifest_older_than_the_table_follows_it[iceberg",
    "tests/spark/archive/test_one_table.py::test_merged_files_hold_the_entries_of_one_partition[iceberg",
    "tests/spark/archive/test_one_table.py::test_the_partitions_are_one_table_with_a_column_of_their_keys[wanted1",
    "tests/spark/session/test_local.py::test_a_master_that_is_none_is_named",
    "tests/spark/test_spark.py::test_a_batch_read_is_xrange[millstream",
    "tests/spark/test_spark.py::test_a_stopped_query_goes_on_where_it_was",
    "tests/spark/write/test_sink_spark.py::test_a_query_copies_each_entry_once_and_a_repeated_batch_adds_nothing[redis",
    "tests/web/test_causes.py::test_a_cause_is_a_card_and_runs_nothing[",
    "tests/web/test_eventful.py::test_a_dark_telephone_is_accessible[",
    "tests/web/test_eventful.py::test_no_page_is_wider_than_the_window[",
    "tests/web/test_hostile_worker.py::test_a_browser_runs_nothing_of_a_hostile_name",
    # kills, crashes and full disks by the dozen: each has a campaign with thousands
    "tests/maintenance/test_backup.py::test_data_is_set_aside_in_one_step",
    "tests/maintenance/test_backup.py::test_killed_at_each_step",
    "tests/node/test_rewriting.py::test_a_killed_parent_loses_nothing_and_takes_its_child_along",
    "tests/node/test_crash.py",
    "tests/node/test_taking_crash.py",
    "tests/persistence/test_crash.py",
    "tests/server/disk/",
    "tests/worker/subscriber/test_isolation.py::test_a_killer_in_a_batch_of_fifty_is_dead_after_two_ends_and_nobody_else_pays",
    "tests/worker/later/test_attacks.py::test_a_changed_timetable_holds_at_once",
    "tests/worker/later/test_attacks.py::test_a_key_of_a_wrong_type_stops_no_other_schedule",
    "tests/worker/later/test_attacks.py::test_nothing_fires_after_a_removal",
    "tests/worker/later/test_schedules.py::test_a_firing_is_skipped_while_an_earlier_one_runs",
    "tests/worker/test_failures_told.py::test_no_text_of_others_passes_for_a_line_of_the_log",
    "tests/worker/later/test_attacks.py::test_a_server_that_lost_its_data_learns_of_the_stream_again",
    # several real servers at a time: Sentinels, clusters, replicas, migrations
    "tests/client/test_cluster.py",
    "tests/client/test_frozen.py",
    "tests/client/test_sentinel.py",
    "tests/commands/test_collections_live.py",
    "tests/conformance/test_lag_live.py",
    "tests/maintenance/test_live.py",
    "tests/migrate/test_moving.py",
    "tests/migrate/test_rdb_file.py",
    "tests/migrate/test_round_trip.py",
    "tests/replication/campaigns/",
    "tests/replication/test_copy_faults.py",
    "tests/replication/test_failover.py",
    "tests/replication/test_following_ours.py",
    "tests/replication/test_following_redis.py",
    "tests/replication/test_hostile_packs.py",
    "tests/replication/test_link.py",
    "tests/replication/test_link_shown.py",
    "tests/replication/test_log_copy.py",
    "tests/replication/test_log_copy_races.py",
    "tests/replication/test_packed_copy.py",
    "tests/replication/test_reading_along.py",
    "tests/replication/test_redis_follows.py",
    "tests/replication/test_roles.py",
    "tests/replication/test_shutdown.py",
    "tests/replication/test_sync_replicas.py",
    "tests/replication/test_tail.py",
    "tests/worker/limits/test_limit_changes.py::test_limits_hold_on_a_cluster_of_three_nodes",
    "tests/worker/later/test_attacks.py::test_a_cluster_moves_and_places_in_every_slot",
    "tests/worker/partitions/test_repartition.py::test_a_cluster_changes_the_number_too",
    # processes, several workers or real time: the command line, workers and servers as programs
    "tests/architecture/test_campaign.py",
    "tests/architecture/test_core.py",
    "tests/architecture/test_site.py",
    "tests/architecture/test_start.py",
    "tests/cli/test_cold.py",
    "tests/maintenance/test_doctor.py::test_streams_in_trouble",
    "tests/node/test_rewriting.py::test_a_copy_of_what_was_rewritten_just_now_rewrites_nothing",
    "tests/node/test_rewriting.py::test_a_killed_child_does_no_harm",
    "tests/replication/test_promotions.py",
    "tests/replication/test_tls_link.py",
    "tests/worker/handlers/test_publishing.py::test_forked_processes_leave_the_connection_of_their_parent_alone",
    "tests/worker/subscriber/test_delays.py::test_a_delay_survives_restarts_and_costs_nothing",
    "tests/cli/test_completing.py",
    "tests/cli/test_extras.py",
    "tests/cli/test_maintenance.py",
    "tests/cli/test_report.py",
    "tests/docs/test_examples.py",
    "tests/embedded/test_durability.py",
    "tests/embedded/test_users.py",
    "tests/persistence/test_processes.py",
    "tests/ops/changes/test_making.py::test_a_removed_consumer_hands_over_first",
    "tests/spark/session/test_submit.py",
    "tests/web/test_frozen_server.py",
    "tests/worker/limits/test_limits.py::test_a_busy_partition_leaves_places_to_the_readers_of_others",
    "tests/worker/partitions/test_hold.py::test_a_held_key_is_named",
    "tests/worker/settlement/test_fencing.py::test_a_renewal_takes_nothing_back",
    "tests/worker/subscriber/test_contract.py::test_long_handlers_and_waiting_entries_keep_their_lease",
    "tests/worker/subscriber/test_contract.py::test_many_deleted_entries_are_dropped_soon",
    "tests/worker/subscriber/test_delays.py::test_the_workers_of_a_group_search_in_turn",
    "tests/worker/subscriber/test_stopping.py::test_a_cancelled_lane_hands_back_what_it_had_not_begun",
    "tests/server/process/",
    "tests/server/test_packs.py::test_packs_take_no_descriptors_from_clients",
    "tests/worker/monitoring/test_health.py",
    "tests/worker/outbox/",
    "tests/worker/process/",
    "tests/worker/registry/test_registry.py",
    "tests/worker/registry/test_watchdog.py",
    "tests/worker/settlement/test_fencing.py::test_what_a_frozen_process_says_of_an_entry_it_lost_is_refused",
    "tests/worker/subscriber/test_stopping.py::test_a_handler_that_goes_on_though_cancelled_does_not_hold_up_the_end",
    # thousands of random steps, damaged bytes and hostile inputs
    "tests/architecture/test_english.py::test_docstrings_and_comments_become_plainer[tests",
    "tests/commands/test_bounds_live.py",
    "tests/conformance/test_live.py::test_random_commands_answer_as_a_living_redis_does",
    "tests/engine/test_blocks.py::test_a_node_that_takes_entries_again",
    "tests/engine/test_memory.py::test_the_count_is_what_is_added_up_again",
    "tests/node/test_batch.py::test_commands_run_together_do_what_they_do_one_by_one",
    "tests/node/test_batch.py::test_damaged_bytes_run_together_do_what_they_do_one_by_one",
    "tests/node/test_no_memory.py",
    "tests/node/test_retention.py::test_it_is_a_trim_by_id_at_random",
    "tests/node/test_vacuum.py::test_random_commands_answer_as_without_packs",
    "tests/protocol/test_reader.py::test_mutated_input_whole_equals_bytewise",
    "tests/protocol/test_reader.py::test_any_commands_in_any_pieces",
    "tests/scripting/test_plain.py::test_a_script_does_what_its_commands_do_by_themselves_and_in_a_transaction",
    "tests/server/commands/test_scan.py::test_what_lasts_is_seen",
    "tests/server/sessions/test_turn_memory.py",
    "tests/spark/arrow/test_decode.py::test_entries_that_are_alike_are_read_right_or_left",
    "tests/spark/arrow/test_decode.py::test_the_fast_way_is_right_or_declines",
    "tests/cli/test_hostile.py",
    "tests/client/test_redact.py::test_a_long_text_is_masked_in_linear_time",
    "tests/engine/test_sorted_sets.py::test_together_is_as_one_by_one",
    "tests/node/test_batch.py::test_transactions_run_together_do_what_they_do_one_by_one",
    "tests/persistence/test_machine.py",
    "tests/security/test_acl_live.py::test_random_rules_allow_the_same",
    "tests/spark/arrow/test_encode_rows.py::test_what_the_sink_writes_the_source_reads",
    "tests/commands/test_costs.py",
    "tests/commands/test_glob.py",
    "tests/commands/test_read_budgets.py",
    "tests/compatibility/",
    "tests/conformance/test_transcripts.py::test_every_recorded_command_answers_the_same_over_a_socket",
    "tests/conformance/test_transcripts.py::test_recorded_commands_answer_the_same_out_of_snapshots",
    "tests/engine/test_machine.py",
    "tests/node/test_group_commit.py",
    "tests/node/test_hostile_logs.py",
    "tests/node/test_replay.py::test_a_damaged_record_changes_nothing_or_is_another_whole_one",
    "tests/node/test_waits_at_random.py",
    "tests/ops/payloads/test_decode.py::test_hostile_values_cost_no_more_than_their_size",
    "tests/ops/test_cost.py",
    "tests/persistence/test_damage.py",
    "tests/protocol/test_reader.py::test_mutated_input_raises_nothing_else",
    "tests/scripting/test_hostile.py",
    "tests/server/load/",
    "tests/spark/archive/test_rows.py::test_entries_come_back_to_the_byte",
    "tests/spark/archive/test_reader.py",
    "tests/spark/archive/test_replay.py",
    "tests/spark/write/test_sink.py::test_a_connection_that_breaks_at_any_step_does_not_matter",
    "tests/spark/write/test_sink.py::test_a_driver_killed_at_any_step_is_repeated_to_the_same_end",
    "tests/worker/model/test_course.py",
    # tests of the tests, and of versions beside each other
    "tests/faults/",
)

KEPT = (
    "tests/architecture/test_start.py::test_help_of_a_noun_loads_no_command",
    "tests/cli/test_maintenance.py::test_a_healthy_log_with_a_snapshot_of_every_kind_is_called_healthy",
    "tests/embedded/test_durability.py::test_process_that_ends_without_closing_closes",
    "tests/embedded/test_tier.py::test_a_kill_loses_nothing[always-300",
    "tests/embedded/test_tier.py::test_a_kill_loses_nothing[everysec-0",
    "tests/node/test_batch.py::test_commands_with_some_rights_do_what_they_do_one_by_one[1",
    "tests/node/test_spill_crash.py::test_a_crash_at_any_operation[spill-DROPPED",
    "tests/node/test_spill_crash.py::test_a_crash_at_any_operation[spill-PROCESS",
    "tests/node/test_spill_crash.py::test_a_crash_at_any_operation[vacuum-REORDERED",
    "tests/replication/test_following_ours.py::test_all_of_a_chain_hold_the_same",
    "tests/replication/test_sync_replicas.py::test_nothing_is_told_before_a_replica_holds_it",
    "tests/server/process/test_process.py::test_sigkill_loses_nothing_acknowledged",
    "tests/server/process/test_process.py::test_sigterm_keeps_everything",
    "tests/spark/archive/test_replay.py::test_an_archive_comes_back_as_it_was",
    "tests/web/test_causes.py::test_a_cause_is_a_card_and_runs_nothing[/-390",
    "tests/web/test_eventful.py::test_a_dark_telephone_is_accessible[group with findings",
    "tests/web/test_eventful.py::test_no_page_is_wider_than_the_window[group of a long name",
    "tests/web/test_eventful.py::test_no_page_is_wider_than_the_window[overview",
    "tests/worker/outbox/test_outbox.py::test_committed_rows_are_entries_in_their_order",
    "tests/worker/outbox/test_outbox.py::test_relays_together_add_each_row_once",
    "tests/worker/process/test_processes.py::test_a_deadly_entry_is_dead_before_its_worker_is_given_up",
    "tests/worker/process/test_processes.py::test_sigterm_hands_back_at_once_and_exits_with_zero",
    "tests/worker/registry/test_registry.py::test_a_worker_reaps_the_dead_of_its_groups",
)
"""Tests of the files above that the first tier runs too: one or two of each kind."""

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
"""One test of each kind that uses Spark's own processes; ``.ci/oldest-spark`` runs these and one more."""

ROOMS = ("handlers", "jobs", "later", "limits", "middlewares", "outbox", "partitions", "settlement")
JOBS = tuple(f"tests/worker/{room}/" for room in ROOMS)
"""Folders whose tests run on Redis in the first tier, and also on Millstream in the second."""

OTHER_SERVERS = frozenset({"redis6", "redis8", "valkey"})
"""Further versions of a server that a test has run on already."""


def is_full(file: str) -> bool:
    """Return True if all tests of a file are in the second tier."""
    kept = any(name.startswith(f"{file}::") for name in KEPT)
    return not kept and file.startswith(tuple(name for name in FULL if "::" not in name))


def mark(item: pytest.Function) -> None:
    """Mark a test with its tier, and select one Spark test of each kind for the oldest PySpark."""
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
    full = item.nodeid.startswith(FULL) and not item.nodeid.startswith(KEPT)
    if others or full or (is_spark and not is_core):
        item.add_marker(pytest.mark.full)
