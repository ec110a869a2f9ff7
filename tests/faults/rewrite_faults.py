"""Faults in the rewriting of the log: ways to lose what the snapshot was made from."""

from faults.planting import ASSERTION, Fault

CRASH = "tests/persistence/test_crash.py::test_a_crash_after_any_operation_loses_nothing_durable"
RECOVERED = (*ASSERTION, "LogCorruptError")
SWITCH = "tests/persistence/test_switch.py"

FAULTS = (
    Fault(
        "old-files-removed-first",
        "Log files are removed when a durable manifest no longer needs them, not before.",
        "persistence/log.py",
        "Log.commit_rewrite",
        "kept = {name: number for name, number in self._others.items() if name in manifest.names}",
        """
        kept = {name: number for name, number in self._others.items() if name in manifest.names}
        for entry in rewrite.source.segments:
            self._disk.remove(self._directory / entry.name)
        """,
        f"{CRASH}[DROPPED-rewriting]",
        RECOVERED,
    ),
    Fault(
        "snapshot-not-synced",
        "A snapshot's content is on the medium before the manifest names it.",
        "persistence/snapshot.py",
        "_sync",
        """
        datasync(file)
        file.drop_cache(before)
        """,
        "",
        f"{CRASH}[DROPPED-rewriting]",
        RECOVERED,
    ),
    Fault(
        "snapshot-without-directory-sync",
        "A snapshot's name is durable before the manifest names it.",
        "persistence/log.py",
        "Log.commit_rewrite",
        "self._sync_names()",
        "",
        "tests/persistence/test_crash.py::test_a_snapshot_is_there_by_name_before_the_manifest_names_it",
        RECOVERED,
        which="2 of 2",
    ),
    Fault(
        "snapshot-adopted-without-directory-sync",
        "Log files are removed when the switch to the manifest without them is durable.",
        "persistence/log.py",
        "Log._switch",
        "self._sync_names()",
        "",
        f"{CRASH}[REORDERED-rewriting]",
        RECOVERED,
        which="2 of 2",
    ),
    Fault(
        "first-sealed-file-left-out",
        "A snapshot holds every record of the files that it replaces.",
        "persistence/rewrite.py",
        "contents",
        "for entry, following, size in zip(source.segments, (*source.segments[1:], end), sizes, strict=True): ...",
        """
        rows = zip(source.segments, (*source.segments[1:], end), sizes, strict=True)
        for entry, following, size in list(rows)[-1:]: ...
        """,
        f"{CRASH}[PROCESS-rewriting]",
        RECOVERED,
    ),
    Fault(
        "snapshot-before-left-out",
        "A snapshot holds what the snapshot before it held.",
        "persistence/rewrite.py",
        "contents",
        "if source.snapshot is not None: ...",
        "if source.snapshot is None: ...",
        f"{CRASH}[PROCESS-rewriting]",
        (*RECOVERED, "AttributeError"),
    ),
    Fault(
        "newest-file-replaced-too",
        "The log file that is written to is not part of what a snapshot replaces.",
        "persistence/log.py",
        "Log.commit_rewrite",
        "manifest = Manifest(old.segments[count:], rewrite.target, obsolete)",
        "manifest = Manifest(old.segments[-1:], rewrite.target, obsolete)",
        f"{CRASH}[PROCESS-rewriting]",
        RECOVERED,
    ),
    Fault(
        "snapshot-synced-at-its-end",
        "No sync of a snapshot is so large that the log's own syncs wait long for it.",
        "persistence/snapshot.py",
        "write_snapshot",
        "if unsynced >= SYNC_BYTES: ...",
        "if unsynced < 0: ...",
        "tests/persistence/test_rewrite.py::test_no_sync_of_a_snapshot_is_large",
    ),
    Fault(
        "always-stands-back",
        "A rewriting keeps up with writers at full rate.",
        "node/log/rewriting.py",
        "Rewriter.consider",
        "self.start(niceness(self.facts.seconds, time.monotonic() - self._ended))",
        "self.start()",
        "tests/node/test_rewriting.py::test_a_log_that_grows_is_rewritten_at_the_priority_it_needs",
    ),
    Fault(
        "late-damage-of-a-snapshot-passes",
        "A snapshot is checked again while it is loaded.",
        "persistence/snapshot.py",
        "snapshot_payloads",
        "(broken := damage(directory, entry, tried(lambda: assess(scan), doing)))",
        "(broken := damage(directory, entry, assess(scan))) and (not damage(directory, entry, tried(lambda: "
        "assess(scan), doing)))",
        "tests/persistence/test_rewrite.py::test_a_snapshot_that_goes_bad_between_the_look_and_the_loading_is_an_error",
    ),
    Fault(
        "unknown-manifest-taken-for-the-old",
        "A log that cannot know which manifest holds takes no more.",
        "persistence/log.py",
        "Log._refused",
        "return self._poison(doing, error)",
        "return disk_error('cannot name the snapshot', error)",
        "tests/persistence/test_rewrite.py::test_a_disk_that_fails_while_a_snapshot_is_taken_over_loses_nothing",
        (*ASSERTION, "LogCorruptError"),
    ),
    Fault(
        "memory-behind-the-renamed-manifest",
        "From the renaming of a manifest on memory holds what the disk holds, whatever fails afterwards.",
        "persistence/log.py",
        "Log._switch",
        """
        self._manifest, self._others, self._before = (manifest, others, sum(others.values()))
        self._sync_names()
        """,
        """
        self._sync_names()
        self._manifest, self._others, self._before = (manifest, others, sum(others.values()))
        """,
        f"{SWITCH}::test_a_directory_sync_that_fails_once_leaves_the_snapshot_that_the_manifest_names",
        (*ASSERTION, "KeyError"),
    ),
    Fault(
        "sweeps-by-a-manifest-that-was",
        "What is removed is needless by the manifest on disk.",
        "persistence/log.py",
        "Log._removable",
        "if read_manifest(self._disk, self._directory) != manifest: ...",
        "if read_manifest(self._disk, self._directory) is None: ...",
        f"{SWITCH}::test_removal_beside_a_manifest_of_another_process_removes_nothing",
        RECOVERED,
    ),
    Fault(
        "sweeps-after-a-failed-switch",
        "A log that does not know which manifest will stay removes nothing.",
        "persistence/log.py",
        "Log._removable",
        "self._check()",
        "",
        f"{SWITCH}::test_a_directory_sync_that_fails_once_leaves_the_snapshot_that_the_manifest_names",
        RECOVERED,
        which="1 of 2",
    ),
    Fault(
        "goes-back-over-a-gap",
        "A start goes back to what a snapshot was made from only if all of it is there.",
        "persistence/predecessor.py",
        "_is_whole",
        "return not any((gap(directory, found, following) for found, following in inventory))",
        "return not any((found is following for found, following in inventory))",
        f"{SWITCH}::test_a_start_does_not_go_back_to_what_is_not_whole",
        (*ASSERTION, "LogCorruptError"),
    ),
)
