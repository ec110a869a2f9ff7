"""Faults in what is done while the disk is full: ways to tell of what it refused, to lose it, or to stay shut."""

from faults.planting import ASSERTION, Fault

COMMITTER = "tests/server/test_committer.py"
OUTAGE = "tests/node/test_outage.py"

FAULTS = (
    Fault(
        "full-disk-releases",
        "No reply is released for a record that a full disk has refused.",
        "server/committer.py",
        "            self._room.refused(error)\n",
        "            self._room.refused(error)\n            self._release(self._log.appended)\n",
        f"{COMMITTER}::test_full_disk_holds_and_goes_on[always]",
    ),
    Fault(
        "full-disk-for-ever",
        "What a full disk refused is tried again.",
        "server/committer.py",
        "        if self._next_try is None and not self._closing:\n",
        "        if self._next_try is not None and not self._closing:\n",
        f"{COMMITTER}::test_full_disk_holds_and_goes_on[always]",
    ),
    Fault(
        "no-floor",
        "Writes are turned away before one fails.",
        "node/room.py",
        "        if free is None or free >= (floor",
        "        if free is None or free >= 0 * (floor",
        f"{COMMITTER}::test_too_little_space_turns_writes_away_before_one_fails[always]",
    ),
    Fault(
        "sync-ends-the-outage",
        "A disk is full until what it refused is written, whatever else it takes.",
        "node/room.py",
        '        if self.state == "full" and self._log.held():\n',
        '        if self.state == "full" and self._log is None:\n',
        f"{COMMITTER}::test_sync_of_what_was_written_ends_no_outage",
        (*ASSERTION, "ValueError"),  # more than one outage where one is taken out of the list
    ),
    Fault(
        "lowered-floor-waits",
        "A floor that is lowered counts at once.",
        "server/committer.py",
        " and self._room.has_moved():\n",
        " and self._room is None:\n",
        f"{COMMITTER}::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "lowered-floor-waits-in-process",
        "A floor that is lowered counts at once, in this process too.",
        "embedded/store.py",
        " and room.has_moved():\n",
        " and room is self:\n",
        "tests/embedded/test_full_disk.py::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "full-disk-tried-by-every-command",
        "A full disk is tried again now and then, not by every command.",
        "node/room.py",
        "        before, self._last_floor = self._last_floor, self._floor()\n",
        "        before = self._floor()\n",
        f"{COMMITTER}::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "held-changes-are-read",
        "No read tells of a change that a full disk has refused.",
        "node/outage.py",
        "        if self.held and self._tells(row, argv):\n",
        "        if self.held < 0 and self._tells(row, argv):\n",
        f"{OUTAGE}::test_held_changes_are_not_told_and_others_are_read_at_once",
    ),
    Fault(
        "held-copy-is-read",
        "A held change touches the key it was moved or copied to.",
        "node/outage.py",
        "            names.add(step[4])\n",
        "            names.add(step[2])\n",
        f"{OUTAGE}::test_no_read_tells_of_what_is_held[1]",
    ),
    Fault(
        "held-change-breaks-a-watch",
        "EXEC does not tell that a held change broke a WATCH.",
        "node/outage.py",
        "for _, key in session.watched):",
        "for _, key in list(session.watched)[:0]):",
        f"{OUTAGE}::test_broken_watch_is_not_told_while_what_broke_it_is_held",
    ),
    Fault(
        "keys-die-on-a-full-disk",
        "Nothing is written unasked while the disk takes nothing.",
        "node/node.py",
        "        if self.outage is None and not self.is_paused and self.chores.is_due(now):\n",
        "        if not self.is_paused and self.chores.is_due(now):\n",
        f"{OUTAGE}::test_expired_keys_are_hidden_and_deleted_later",
    ),
    Fault(
        "script-writes-on-a-full-disk",
        "A script is turned away at its first write.",
        "node/node.py",
        "        if self.outage is not None and (line := self.outage.refusal(row, argv)) is not None:\n",
        "        if False and (line := self.outage.refusal(row, argv)) is not None:\n",
        f"{OUTAGE}::test_scripts",
    ),
)
