"""Faults in archives that lie in an object store: ways to write over another job's, or to take a list for the truth."""

from faults.planting import Fault

OBJECTS = "tests/spark/archive/test_objects.py"

FAULTS = (
    Fault(
        "put-whatever-is-there",
        "What another program put in an object store is not written over.",
        "spark/archiving/objects/storage.py",
        "ObjectStorage.put_version",
        "'create' if version is None else version",
        "'overwrite'",
        f"{OBJECTS}::test_the_storage_puts_on_condition",
    ),
    Fault(
        "lost-answer-taken-for-another-job",
        "A put whose answer was lost is known to be this job's own.",
        "spark/archiving/objects/storage.py",
        "ObjectStorage.put_version",
        "ours = self._marked(path, mark)",
        "ours = None",
        f"{OBJECTS}::test_an_answer_that_is_lost_is_not_another_job",
        ("ChangedMeanwhileError",),
    ),
    Fault(
        "unlisted-taken-for-gone",
        "A list that lags behind is not taken for what is there.",
        "spark/archiving/directory.py",
        "Folder.unnamed",
        "lost = [path for path in sorted(named - there) if not self._is_there(path)]",
        "lost = sorted(named - there)",
        f"{OBJECTS}::test_a_list_that_lags_removes_nothing_that_is_named",
        ("FilesChangedError",),
    ),
    Fault(
        "sleeper-not-shut-out",
        "A job that was asleep while its lock was taken cannot change the archive.",
        "spark/archiving/directory.py",
        "Folder.begin",
        "self.storage.local is None",
        "self.storage.local is not None",
        f"{OBJECTS}::test_an_owner_that_was_asleep_cannot_win",
    ),
    Fault(
        "lock-taken-from-who-lives",
        "The lock of a job that renews it is not taken.",
        "spark/archiving/objects/lease.py",
        "_take",
        "watched, until = version, now + record.lease_seconds",
        "watched, until = version, now",
        f"{OBJECTS}::test_a_lock_is_not_taken_while_its_lease_lasts",
    ),
    Fault(
        "leftover-by-its-first-id",
        "A file that no manifest names goes only while the stream has all its entries.",
        "spark/archiving/leftovers.py",
        "_has",
        "theirs.get(ident) != fields",
        "ident not in theirs",
        "tests/spark/archive/test_bad_shapes.py::test_a_manifest_from_a_backup_and_a_stream_begun_anew_cost_no_file",
    ),
    Fault(
        "newest-version-by-a-list",
        "Of a Delta table's log the newest version is asked for by its name, and nothing is trimmed until it is seen.",
        "spark/archiving/tables/delta.py",
        "_open",
        "if not storage.exists(_log(plan, table.version() + 1)): ...",
        "if table is not None: ...",
        f"{OBJECTS}::test_a_log_that_lists_lag_behind",
        ("AssertionError", "TableChangedError"),
    ),
)
