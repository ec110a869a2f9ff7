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
)
