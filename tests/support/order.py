"""The distribution of test files to four processes, and their order, so that no long file runs alone at the end.

Four for two cores: half of the time a test waits for a process it has started, a disk or a clock.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]

SPARK = "spark"
"""One work unit: the files of Spark's own folder, which share a session and its JVM in their process."""

JAVA = "java"
"""One work unit: the other files that start a JVM, one after the other, since each uses both cores."""

PROGRAMS = (
    "tests/spark/session/test_submit.py",
    "tests/spark/test_kills.py",
    "tests/spark/test_page.py",
    "tests/spark/write/test_retries.py",
)
"""Files of Spark's folder that start programs with a JVM each. They are separate, since one process for all would
finish long after the others.
"""

SLOW = (
    "tests/persistence/test_crash.py",
    "tests/worker/process/test_processes.py",
    "tests/faults/test_faults.py",
    "tests/server/load/test_kills.py",
    "tests/web/test_browser.py",
    "tests/node/test_crash.py",
    "tests/worker/process/test_spare.py",
    "tests/worker/registry/test_registry.py",
    "tests/worker/later/test_schedules.py",
    "tests/architecture/test_installing.py",
    "tests/spark/archive/test_one_table.py",
    "tests/embedded/test_tier.py",
    "tests/cli/test_alert.py",
    "tests/node/test_spill_crash.py",
    "tests/conformance/test_transcripts.py",
    "tests/engine/test_machine.py",
    "tests/server/load/test_soak.py",
    "tests/docs/test_tutorial.py",
    "tests/server/disk/test_full_disk.py",
    "tests/client/test_sentinel.py",
    "tests/deploy/test_running.py",
)
"""Files that take ten seconds or more for few tests, the longest first. Started last, they would run alone."""


@cache
def work_unit(file: str) -> str:
    """Return the unit in which a file is distributed: the file itself, or a group of files with Spark."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if "pytest.mark.spark" not in text:
        return file
    return SPARK if file.startswith("tests/spark/") and file not in PROGRAMS else JAVA


def in_order(counts: Iterable[tuple[str, int]]) -> list[str]:
    """Return the work units in starting order: Spark, Java, slow files, then those with the most tests.

    Args:
        counts: Units with their number of tests.
    """
    first = [SPARK, JAVA, *SLOW]
    places = {unit: place for place, unit in enumerate(first)}
    return [unit for unit, _ in sorted(counts, key=lambda one: (places.get(one[0], len(first)), -one[1], one[0]))]


class Scheduling(LoadFileScheduling):
    """pytest-xdist's distribution by files, with :func:`work_unit` and :func:`in_order`."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: object) -> None:
        counts = [(unit, len(tests)) for unit, tests in self.workqueue.items()]
        self.workqueue.move_to_end(in_order(counts)[0], last=False)
        super()._assign_work_unit(node)
