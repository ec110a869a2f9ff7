"""Faults in streams whose oldest entries are in packs: entries that get lost, come back, or hold up other clients."""

from faults.planting import ASSERTION, Fault

CRASH = "tests/node/test_spill_crash.py::test_a_crash_at_any_operation"
VACUUM = "tests/node/test_vacuum.py"

FAULTS = (
    Fault(
        "memory-freed-before-the-pack-is-synced",
        "Entries leave memory once they are on the medium in a pack.",
        "persistence/packs.py",
        "PackWriter._write",
        """
        datasync(self._file)
        self._file.drop_cache(self._size)
        """,
        "",
        f"{CRASH}[spill-DATA_LOST]",
    ),
    Fault(
        "tcold-before-the-switch",
        "The manifest on the medium names a pack before a record refers to it.",
        "persistence/log.py",
        "Log.add_pack",
        'self._switch(manifest, self._others, "add a pack after", entry.name)',
        "self._manifest = manifest",
        f"{CRASH}[spill-PROCESS]",
        (*ASSERTION, "LogCorruptError"),
    ),
    Fault(
        "packs-removed-before-the-switch",
        "A pack is removed once the manifest on the medium does not need it.",
        "persistence/log.py",
        "Log.commit_rewrite",
        "kept = {name: number for name, number in self._others.items() if name in manifest.names}",
        """
        kept = {name: number for name, number in self._others.items() if name in manifest.names}
        for each in left:
            self._disk.remove(self._directory / each.name)
        """,
        f"{CRASH}[vacuum-PROCESS]",
        (*ASSERTION, "LogCorruptError"),
    ),
    Fault(
        "holes-lost-by-copy",
        "What is deleted of cold entries stays deleted in a copy of the stream.",
        "engine/streams/cold.py",
        "PyCold.copy",
        "twin.extents, twin.live, twin.nodes = self.extents.copy(), self.live, self.nodes",
        """
        twin.extents = [each._replace(holes=Holes()) for each in self.extents]
        twin.live, twin.nodes = self.live, self.nodes
        """,
        f"{VACUUM}::test_a_copy_of_a_stream_keeps_its_own_holes",
    ),
    Fault(
        "holes-lost-by-a-vacuum",
        "What is deleted while an extent is written anew stays deleted.",
        "node/maintenance/renewing.py",
        "_moved",
        "return present._replace(nodes=len(renewal.spans), stored=ordinal, holes=Holes(dead, gone))",
        "return present._replace(nodes=len(renewal.spans), stored=ordinal, holes=Holes())",
        f"{VACUUM}::test_what_changes_before_the_commit_is_right_after_it[delete one-found]",
        (*ASSERTION, "ValueError"),
    ),
    Fault(
        "miss-after-a-commit",
        "A command that has changed something waits for what it reads then, and does not run again.",
        "commands/context/context.py",
        "Context._commit_planned",
        "space.reads.may_wait = True",
        "",
        "tests/node/test_cold.py::test_a_command_that_has_changed_something_does_not_run_again",
    ),
    Fault(
        "run-read-past-its-extent",
        "A read of a run of cold entries ends with its extent.",
        "engine/streams/cold.py",
        "PyCold._want_part",
        "self._read(extent, 0, extent.length - FRAME_HEAD)",
        "self._read(extent, 0, extent.length)",
        "tests/node/test_spilling.py::test_what_changes_before_the_commit_is_right_after_it[nothing-gathered]",
    ),
    Fault(
        "drop-behind-of-a-pack-being-filled",
        "What was spilled a moment ago stays in the page cache for those who read just behind the end of a stream.",
        "node/tiering/readahead.py",
        "ReadAhead.forget",
        "if extent[0] != self._newest() and not self._is_wanted(left.run, extent): ...",
        "if not self._is_wanted(left.run, extent): ...",
        "tests/node/test_readahead.py::test_what_may_still_be_filled_is_not_dropped[python]",
    ),
    Fault(
        "parked-client-not-run-again",
        "A client that waits for cold entries gets its reply once they were read.",
        "node/tiering/tickets.py",
        "Tickets._ready",
        "self._sessions.outbox.append((session, Outcome([], 0)))",
        "",
        "tests/server/sessions/test_parking.py::test_a_client_that_sends_no_more_gets_its_replies",
        (*ASSERTION, "TimeoutError"),
    ),
)
