"""Faults in what is watched and traced: ways not to be told, or to lose what somebody changed."""

from faults.planting import Fault

TRACE = "tests/worker/middlewares/test_trace_of_an_entry.py"

FAULTS = (
    Fault(
        "trace-ends-at-the-publish",
        "A trace goes from the publish to the run, over processes.",
        "worker/middlewares/tracing.py",
        "_context",
        "return extract(carrier or plain, Context())",
        "return Context()",
        f"{TRACE}::test_a_trace_goes_from_one_process_to_another[redis]",
    ),
    Fault(
        "first-listener-forgotten",
        "Whoever asked what becomes of an entry is told.",
        "worker/settlement/consumer.py",
        "Held.then",
        "self.on_end = both",
        "self.on_end = call",
        f"{TRACE}::test_hooks_that_fail_harm_no_entry[redis]",
    ),
    Fault(
        "slow-syncs-uncounted",
        "An alert sees a disk that takes seconds for a sync.",
        "node/durability/group_commit.py",
        "GroupCommit.done",
        "self.slow_syncs += report.seconds > SLOW_SECONDS",
        "",
        "tests/node/test_group_commit.py::test_syncs_that_take_seconds_are_counted",
    ),
    Fault(
        "runs-never-grow-old",
        "A run without end is seen from outside.",
        "worker/settlement/running.py",
        "RunningSince.look",
        "running = [one for one in list(held) if one.state is State.RUNNING]",
        "running, self._since = [one for one in list(held) if one.state is State.RUNNING], {}",
        "tests/worker/monitoring/test_health.py::test_a_run_is_as_old_as_the_first_scrape_that_saw_it[redis]",
    ),
    Fault(
        "rules-overwritten",
        "Rules that somebody changed are replaced only when asked to.",
        "dashboards/catalogue.py",
        "write_all",
        "if changed and not force: ...",
        "if changed and force: ...",
        "tests/dashboards/test_files.py::test_files_are_written_and_nobodys_changes_are_lost",
    ),
    Fault(
        "lost-link-passed-over",
        "A replica whose primary is gone needs a person.",
        "console/model/facts/servers.py",
        "_link",
        'if link is None or link.state == "up": ...',
        "if link is not None: ...",
        "tests/console/test_server_advice.py::test_a_replica_of_nobody_needs_a_person",
    ),
    Fault(
        "refusing-told-as-well",
        "INFO says whether sync-replicas refuses writes.",
        "commands/admin/info.py",
        "_replication",
        'yield "millstream_sync_state", "refused" if known.is_short else "ok"',
        'yield "millstream_sync_state", "ok"',
        "tests/replication/test_sync_replicas.py::test_without_replicas_no_write_is_taken",
    ),
    Fault(
        "refused-taken-for-absent",
        "What a server refuses for the moment it does not lack.",
        "worker/handlers/publish.py",
        "need_idmp",
        'if not found.idmp and "idmp" not in found.unknown: ...',
        "if not found.idmp: ...",
        "tests/worker/handlers/test_publishing.py::test_a_server_that_takes_no_writes_now_may_know_idmp",
        shows=("UsageError",),
    ),
)
