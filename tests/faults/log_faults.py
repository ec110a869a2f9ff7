"""Faults in the log, its snapshots and its backups, which lose durable data or accept damaged data."""

from faults.planting import ASSERTION, Fault

CRASH = "tests/persistence/test_crash.py::test_a_crash_after_any_operation_loses_nothing_durable"
DAMAGE = "tests/persistence/test_damage.py"
DISPLACED = "tests/server/disk/test_displaced.py"
RECOVERED = (*ASSERTION, "LogCorruptError")
DISPLACES = (*RECOVERED, "DiskError")  # the log itself finds that its file has another length than it should
BACKUP = "tests/maintenance/test_backup.py"
PACKED = "tests/node/test_packed_log.py"

FAULTS = (
    Fault(
        "durable-before-fsync",
        "What is called durable is on the medium.",
        "persistence/log.py",
        "Log._datasync",
        """
        datasync(self._file)
        self._expect_place()
        """,
        "",
        f"{CRASH}[DROPPED-synced]",
    ),
    Fault(
        "recovery-trusts-unsynced-data",
        "Records that recovery shows are durable first.",
        "persistence/recovery.py",
        "_sync_tail",
        "datasync(file)",
        "",
        f"{CRASH}[PROCESS-synced]",
    ),
    Fault(
        "torn-tail-not-cut",
        "What was torn does not stay in front of what is written next.",
        "persistence/recovery.py",
        "_open_tail",
        "file.truncate(result.end)",
        "",
        f"{DAMAGE}::test_opening_a_cut_log_keeps_the_rest_aside_and_says_so",
        DISPLACES,
    ),
    Fault(
        "cut-bytes-thrown-away",
        "Bytes that are cut are kept aside.",
        "persistence/recovery.py",
        "_keep_aside",
        "copy_from(file, aside, result.end, result.size)",
        "copy_from(file, aside, result.end, result.end)",
        f"{DAMAGE}::test_opening_a_cut_log_keeps_the_rest_aside_and_says_so",
    ),
    Fault(
        "payload-checksum-skipped",
        "A flipped bit in a record is seen.",
        "persistence/frame.py",
        "py_decode_run",
        "if crc32(payload, head_crc) != payload_crc: ...",
        "",
        f"{DAMAGE}::test_every_flipped_bit_of_a_killed_log_is_seen",
    ),
    Fault(
        "torn-middle-cut-silently",
        "Damage that whole records follow is refused.",
        "persistence/segment.py",
        "assess",
        "state = TailState.CORRUPT if proof else TailState.TORN",
        "state = TailState.TORN",
        f"{DAMAGE}::test_every_flipped_bit_of_a_closed_log_is_seen",
    ),
    Fault(
        "lock-not-taken",
        "One process has a data directory.",
        "persistence/disk.py",
        "_take",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(fd, fcntl.LOCK_UN)",
        "tests/persistence/test_processes.py::test_another_process_is_locked_out_until_the_owner_dies",
    ),
    Fault(
        "failed-sync-counts",
        "A failed sync makes nothing durable.",
        "persistence/log.py",
        "Log._datasync",
        """
        datasync(self._file)
        self._expect_place()
        self.durable = self.written
        """,
        """
        self.durable = self.written
        datasync(self._file)
        """,
        "tests/persistence/test_failures.py::test_a_failed_sync_poisons_and_promises_nothing",
    ),
    Fault(
        "displaced-directory-written-to",
        "Nothing is promised from a directory that a start would not find.",
        "persistence/log.py",
        "Log._expect_place",
        "if reason: ...",
        "if reason is None: ...",
        f"{DISPLACED}::test_nothing_is_promised_that_a_start_would_not_find",
    ),
    Fault(
        "directory-not-locked",
        "A removed lock file lets nobody in.",
        "persistence/disk.py",
        "RealLock.__init__",
        "_take(home.fd)",
        "os.fstat(home.fd)",
        f"{DISPLACED}::test_the_lock_outlives_its_file",
    ),
    Fault(
        "data-directory-open-to-others",
        "A data directory that is made is for its owner alone.",
        "persistence/disk.py",
        "RealDisk.make_directory",
        "self._make_directory(directory, 448)",
        "self._make_directory(directory, 493)",
        "tests/persistence/test_exposure.py::test_everything_that_is_made_is_for_its_owner_alone",
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
        "snapshot-synced-at-its-end",
        "No sync of a snapshot is so large that the log's own syncs wait long for it.",
        "persistence/snapshot.py",
        "write_snapshot",
        "if unsynced >= SYNC_BYTES: ...",
        "if unsynced < 0: ...",
        "tests/persistence/test_rewrite.py::test_no_sync_of_a_snapshot_is_large",
    ),
    Fault(
        "pack-released-while-needed",
        "A rewriting does not remove a pack to which the data in memory refer.",
        "node/log/rewriting.py",
        "Rewriter._releasable",
        "kept = self._packs.needed(gone) if gone else gone",
        "kept = set()",
        f"{PACKED}::test_a_pack_that_memory_needs_stays_and_is_reported",
    ),
    Fault(
        "pack-released-while-filled",
        "A rewriting does not remove a pack that is being filled.",
        "persistence/log.py",
        "Log.add_pack",
        "self._filled_until[entry.number] = sys.maxsize",
        "",
        f"{PACKED}::test_a_rewriting_removes_the_packs_that_nothing_needs",
    ),
    Fault(
        "pack-of-a-copy-not-synced",
        "A pack that came with a copy is on the medium before the manifest names it.",
        "persistence/packs.py",
        "settle_pack",
        "datasync(file)",
        "",
        "tests/node/test_taking_crash.py::test_a_crash_at_any_operation[DROPPED]",
        RECOVERED,
    ),
    Fault(
        "pack-removed-while-sent",
        "A rewriting does not remove a pack that a copy still has to send.",
        "persistence/log.py",
        "Log.files",
        "self._held.add(names)",
        "",
        "tests/replication/test_packed_copy.py::test_packs_stay_while_a_copy_sends_them",
    ),
    Fault(
        "start-without-a-pack",
        "A start is refused if its data refer to a pack that the manifest does not name.",
        "node/log/packs.py",
        "lacking_packs",
        "found[number] = LackingPack(number, pack.name if pack else name, directory / name, end, reason)",
        "",
        f"{PACKED}::test_records_that_need_a_pack_which_is_not_named_are_refused",
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
        "tests/persistence/test_switch.py::test_a_directory_sync_that_fails_once_leaves_the_snapshot_that_the_manifest_names",
        (*ASSERTION, "KeyError"),
    ),
    Fault(
        "deliveries-left-out",
        "A snapshot holds how often each pending entry was delivered.",
        "engine/serialization/snapshot.py",
        "_group",
        "times, counts = ([one.time for one in records], [one.count for one in records])",
        "times, counts = ([one.time for one in records], [1 for one in records])",
        "tests/node/test_snapshot.py::test_a_snapshot_gives_back_what_it_was_made_of[_groups]",
    ),
    Fault(
        "failed-child-believed",
        "A snapshot counts only if the process that made it says that it is whole and on the disk.",
        "node/log/children.py",
        "ChildProcess.said",
        "if code := self._process.wait(): ...",
        "if (code := self._process.wait()) is None: ...",
        "tests/node/test_rewriting.py::test_a_killed_child_does_no_harm[datasync 1]",
    ),
    Fault(
        "copy-read-further-than-it-has-come",
        "A copy is read as far as it has come, and its end is where the primary says.",
        "node/log/taking.py",
        "Arriving._beyond",
        "self._changed.wait_for(lambda: self._size > at or self._order is not None)",
        "self._changed.wait_for(lambda: True)",
        "tests/replication/test_reading_along.py::test_damage_at_the_end_of_a_copy[directory]",
    ),
    Fault(
        "snapshot-not-read-back",
        "A snapshot is read back before it takes the place of what it was made from.",
        "persistence/rewrite.py",
        "make",
        "read(snapshot_payloads(disk, directory, rewrite.target))",
        "",
        "tests/persistence/test_rewrite.py::test_what_cannot_be_read_back_is_no_snapshot",
    ),
    Fault(
        "half-a-backup-under-its-name",
        "What has the name of a backup is whole.",
        "maintenance/backup/copying.py",
        "partial_of",
        "return final.with_name(f'{final.name}.partial-{secrets.token_hex(4)}')",
        "return final",
        f"{BACKUP}::test_killed_at_each_step",
        (*ASSERTION, "LogCorruptError", "KeyError"),
    ),
    Fault(
        "backup-not-verified",
        "A copy is read back: a damaged log makes no backup.",
        "maintenance/backup/copying.py",
        "verify",
        "if not report.ok: ...",
        "if report is None: ...",
        f"{BACKUP}::test_a_damaged_log_is_not_backed_up",
    ),
    Fault(
        "unfinished-write-backed-up",
        "A write that was under way is cut off a backup.",
        "maintenance/backup/copying.py",
        "_cut_tail",
        "if result.state is not TailState.TORN: ...",
        "if result.state is not TailState.CORRUPT: ...",
        f"{BACKUP}::test_a_record_under_way_is_left_out",
        (*ASSERTION, "LogCorruptError"),
    ),
    Fault(
        "restored-under-a-server",
        "A restore never takes the directory of a running server.",
        "maintenance/backup/restore.py",
        "_emptied",
        "lock = take_lock(disk, directory)",
        "lock = take_lock(disk, directory.parent)",
        f"{BACKUP}::test_data_is_not_restored_over",
    ),
    Fault(
        "moment-ends-early",
        "Restored as of a time, a log holds the records of that very millisecond.",
        "maintenance/log/moment.py",
        "last_before",
        "if until.ms is not None and wall_of(position, payload) > until.ms: ...",
        "if until.ms is not None and wall_of(position, payload) >= until.ms: ...",
        f"{BACKUP}::test_at_every_position_and_moment",
    ),
    Fault(
        "cut-before-the-copy-is-durable",
        "What is cut off a log by hand is on the medium elsewhere first.",
        "maintenance/log/cut.py",
        "_Truncation._copy_from",
        "datasync(new)",
        "",
        "tests/maintenance/test_cut.py::test_what_is_cut_is_on_the_medium_elsewhere_first",
    ),
    Fault(
        "losses-behind-the-file-not-told",
        "A check lists the loss in every file behind the damage.",
        "maintenance/log/walk.py",
        "records_behind",
        "if entry.name < name: ...",
        "if entry.name != name: ...",
        "tests/maintenance/test_examine.py::test_damage_in_the_middle",
    ),
)
