"""Faults in what is done while the disk is full: ways to tell of what it refused, to lose it, or to stay shut."""

from faults.planting import ASSERTION, Fault

COMMITTER = "tests/server/load/test_committer.py"
OUTAGE = "tests/node/test_outage.py"

FAULTS = (
    Fault(
        "full-disk-releases",
        "No reply is released for a record that a full disk has refused.",
        "node/durability/group_commit.py",
        "GroupCommit.fail",
        "self._guard.refused(error)",
        """
        self._guard.refused(error)
        self.gate.released = self._log.appended
        """,
        f"{COMMITTER}::test_full_disk_holds_and_goes_on[always]",
    ),
    Fault(
        "full-disk-for-ever",
        "What a full disk refused is tried again.",
        "node/durability/group_commit.py",
        "GroupCommit.fail",
        "if self._retry_at is None: ...",
        "if self._retry_at is not None: ...",
        f"{COMMITTER}::test_full_disk_holds_and_goes_on[always]",
        which="1 of 2",
    ),
    Fault(
        "no-floor",
        "Writes are turned away before one fails.",
        "node/durability/disk_guard.py",
        "DiskGuard.worked",
        "if free is None or free >= (floor if self.state == 'ok' else floor + floor // 4): ...",
        "if free is None or free >= 0 * (floor if self.state == 'ok' else floor + floor // 4): ...",
        f"{COMMITTER}::test_too_little_space_turns_writes_away_before_one_fails[always]",
    ),
    Fault(
        "sync-ends-the-outage",
        "A disk is full until what it refused is written, whatever else it takes.",
        "node/durability/disk_guard.py",
        "DiskGuard.worked",
        "if self.state == 'full' and self._log.held(): ...",
        "if self.state == 'full' and self._log is None: ...",
        f"{COMMITTER}::test_sync_of_what_was_written_ends_no_outage",
        (*ASSERTION, "ValueError"),  # more than one outage where one is taken out of the list
    ),
    Fault(
        "lowered-floor-waits",
        "A floor that is lowered counts at once.",
        "server/committer.py",
        "Committer.poke",
        "if self._commit.retry_if_floor_moved(): ...",
        "if False: ...",
        f"{COMMITTER}::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "lowered-floor-waits-in-process",
        "A floor that is lowered counts at once, in this process too.",
        "embedded/store.py",
        "Store._commit",
        "kept.commit.retry_if_floor_moved()",
        "pass",
        "tests/embedded/test_full_disk.py::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "full-disk-tried-by-every-command",
        "A full disk is tried again now and then, not by every command.",
        "node/durability/disk_guard.py",
        "DiskGuard.has_moved",
        "before, self._last_floor = (self._last_floor, self._floor())",
        "before = self._floor()",
        f"{COMMITTER}::test_a_floor_that_is_lowered_counts_at_once",
    ),
    Fault(
        "held-changes-are-read",
        "No read tells of a change that a full disk has refused.",
        "node/durability/outage.py",
        "Outage.refusal",
        "if self.held and self._tells(row, argv): ...",
        "if self.held < 0 and self._tells(row, argv): ...",
        f"{OUTAGE}::test_held_changes_are_not_told_and_others_are_read_at_once",
    ),
    Fault(
        "held-copy-is-read",
        "A held change touches the key it was moved or copied to.",
        "node/durability/outage.py",
        "Outage._note",
        "names.add(step[4])",
        "names.add(step[2])",
        f"{OUTAGE}::test_no_read_tells_of_what_is_held[1]",
    ),
    Fault(
        "held-change-breaks-a-watch",
        "EXEC does not tell that a held change broke a WATCH.",
        "node/durability/outage.py",
        "Outage.refusal_of",
        "if any((self._is_touched(key) for _, key in session.watched)): ...",
        "if any((self._is_touched(key) for _, key in list(session.watched)[:0])): ...",
        f"{OUTAGE}::test_broken_watch_is_not_told_while_what_broke_it_is_held",
    ),
    Fault(
        "keys-die-on-a-full-disk",
        "Nothing is written unasked while the disk takes nothing.",
        "node/node.py",
        "Node._may_look_after",
        "return self.journal.outage is None and self._pause.ends is None and not self.following.is_taking",
        "return self._pause.ends is None and not self.following.is_taking",
        f"{OUTAGE}::test_expired_keys_are_hidden_and_deleted_later",
    ),
    Fault(
        "script-writes-on-a-full-disk",
        "A script is turned away at its first write.",
        "node/admission.py",
        "Admission.refusal_inside",
        "if outage is not None and (line := outage.refusal(row, argv)) is not None: ...",
        "if False and (line := outage.refusal(row, argv)) is not None: ...",
        f"{OUTAGE}::test_scripts",
    ),
)
