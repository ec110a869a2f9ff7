"""Faults in the node, the engine and the connections, which show a write before it is durable, or lose it."""

from faults.planting import ASSERTION, Fault

OUTAGE = "tests/node/test_outage.py"
SHOWN = "tests/server/disk/test_shown.py::test_nothing_is_shown_before_it_is_durable"
GONE = (*ASSERTION, "EOFError", "ConnectionResetError")

FAULTS = (
    Fault(
        "misses-count-as-hits",
        "INFO's keyspace_hits and keyspace_misses are what Redis counts.",
        "commands/context/context.py",
        "Context.lookup",
        "self.host.lookups.misses += 1",
        "self.host.lookups.hits += 1",
        "tests/server/process/test_monitoring.py::test_hits_and_misses_are_counted_as_redis_counts_them",
        which="2 of 2",
    ),
    Fault(
        "turn-answers-before-its-commit",
        "What was run together in a turn is answered when it is where the fsync mode promises.",
        "server/serving.py",
        "Serving.end_turn",
        "return barrier, VOID < barrier <= gate.released and not gate.holders and self.failure is None",
        "return 0, True",
        "tests/server/disk/test_shown.py::test_nothing_plain_is_shown_before_it_is_durable[XLEN-alone]",
        core="native",
    ),
    Fault(
        "failed-disk-goes-on",
        "A failed disk ends the server.",
        "server/serving.py",
        "Serving.fail",
        "self.stopping.set()",
        "",
        "tests/server/process/test_process.py::test_failed_disk_ends_the_server",
        (*ASSERTION, "TimeoutExpired"),
    ),
    Fault(
        "everysec-waits-for-the-loop",
        "Under everysec a command that keeps all others waiting does not keep what was acknowledged from the disk.",
        "server/committer.py",
        "Committer._settle",
        "self._steps.put(time.monotonic() + self._sync_seconds)",
        "pass",
        "tests/server/load/test_committer.py::test_everysec_syncs_while_one_command_keeps_the_loop",
    ),
    Fault(
        "everysec-syncs-once",
        "Under everysec no more than about a second of writes is ever unsynced.",
        "node/durability/group_commit.py",
        "GroupCommit.done",
        "self.synced_at, self.sync_at = now, None",
        "self.synced_at, self.sync_at = now, now + 1000",
        "tests/server/disk/test_window.py::test_everysec_loses_at_most_its_window",
    ),
    Fault(
        "stop-forgets-what-it-owes",
        "A stop sends the replies that waited for the disk.",
        "server/connection.py",
        "Connection._close_if_done",
        "if self._ending and (not self._held) and (not self._closed): ...",
        "if self._ending and (not self._closed): ...",
        "tests/server/disk/test_shown.py::test_a_stop_sends_what_waited_for_the_disk",
        GONE,
    ),
    Fault(
        "reply-before-durable",
        "A write's reply waits for its record.",
        "node/clients/replies.py",
        "Replies.outcome",
        "barrier = journal.log.appended if shows_soft else journal.position",
        """
        barrier = journal.log.appended if shows_soft else journal.position
        barrier *= row is None or 'write' not in row.flags
        """,
        f"{SHOWN}[reply]",
    ),
    Fault(
        "read-before-durable",
        "Nobody reads a write that is not durable.",
        "node/clients/replies.py",
        "Replies.outcome",
        "barrier = journal.log.appended if shows_soft else journal.position",
        """
        barrier = journal.log.appended if shows_soft else journal.position
        barrier *= row is None or row.name != 'xrange'
        """,
        f"{SHOWN}[read]",
    ),
    Fault(
        "slowlog-keeps-passwords",
        "What proves who a client is is not shown to who looks for slow commands.",
        "commands/context/slowlog.py",
        "_cut",
        "words = [_REDACTED if at in secrets else _cut_word(word) for at, word in enumerate(kept)]",
        "words = [_cut_word(word) for at, word in enumerate(kept)]",
        "tests/commands/test_slowlog.py::test_no_secret_is_kept_though_the_command_is_refused[AUTH a b c]",
    ),
    Fault(
        "writes-taken-by-a-full-disk",
        "While the disk is full every write is refused.",
        "node/durability/outage.py",
        "Outage.refusal",
        "if 'write' in row.flags: ...",
        "if 'write' in row.flags and self.held: ...",
        f"{OUTAGE}::test_every_writing_command_is_refused",
    ),
    Fault(
        "wall-clock-for-timeouts",
        "A wait is measured by a clock that does not jump.",
        "node/node.py",
        "Node.tick",
        "if waiter.deadline is not None and waiter.deadline <= now.mono: ...",
        "if waiter.deadline is not None and waiter.deadline <= now.mono + now.wall - waiter.session.last_used: ...",
        "tests/node/test_blocking.py::test_waiting_is_measured_by_a_clock_that_does_not_jump",
    ),
    Fault(
        "unlimited-output",
        "A client that does not read is cut.",
        "server/connection.py",
        "Connection._cut_slow",
        "self._cut(f'it left {held} bytes of replies unread')",
        "",
        "tests/server/sessions/test_sessions.py::test_slow_reader_is_cut",
        (*ASSERTION, "TimeoutError"),
    ),
    Fault(
        "large-reply-handed-over",
        "A reply above the hard limit costs no memory: its client is cut before it is handed over.",
        "server/connection.py",
        "Connection._write",
        """
        if size > _BATCH and self._would_pass(size):
            return
        self._server.facts.output_bytes += size
        self.sent += size
        if size <= _BATCH: ...
        """,
        """
        self._server.facts.output_bytes += size
        self.sent += size
        if size: ...
        """,
        "tests/server/load/test_crowds.py::test_what_passes_the_limit_is_not_handed_over",
    ),
    Fault(
        "clients-take-the-last-descriptors",
        "The last descriptors are never a client's.",
        "server/accepting.py",
        "Listener._accept",
        "if sock.fileno() >= descriptors() - RESERVE: ...",
        "if sock.fileno() >= descriptors(): ...",
        "tests/server/disk/test_descriptors.py::test_an_embedded_server_keeps_the_reserve",
        (*ASSERTION, "TimeoutError"),
    ),
    Fault(
        "transactions-are-not-weighed",
        "What a transaction changes is refused before it is more than a record holds.",
        "node/log/weight.py",
        "Weight.add",
        "if self.bytes + size > limits.CHANGE_MAX: ...",
        "if size > limits.CHANGE_MAX: ...",
        "tests/node/test_large_changes.py::test_a_transaction_is_refused_what_is_too_much",
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
        "plain-run-not-logged",
        "What plain commands change is in the log.",
        "node/batch.py",
        "Batches.run",
        "self._journal.append_run(run.record, soft=run.soft)",
        "pass",
        "tests/server/load/test_plain_kills.py::test_a_server_killed_under_plain_commands_is_as_the_model_says[always]",
        ("AssertionError", "ResponseError"),
        core="native",
    ),
    Fault(
        "small-replies-unwatched",
        "Who leaves many small replies untaken is cut.",
        "server/connection.py",
        "Connection._run_directly",
        "if self._full: self.check_output()",
        "",
        "tests/server/sessions/test_limits.py::test_output_hard_limit_of_small_replies",
        core="native",
    ),
    Fault(
        "libraries-can-be-written",
        "Nothing a script does outlives it.",
        "node/scripting/lua/natives.lua",
        "tables.insert",
        "if frozen[list] and (count == 2 or count == 3) then",
        "if frozen[list] and count == 0 then",
        "tests/scripting/test_takeover.py::test_nothing_a_script_does_outlives_it",
    ),
    Fault(
        "unpack-behind-the-stack",
        "No script ends the process.",
        "node/scripting/lua/natives.lua",
        "bases.unpack",
        "to - from + 1 + select('#', ...) > STACK then",
        "to - from + 1 + select('#', ...) > 2 ^ 60 then",
        "tests/scripting/test_hostile.py::test_scripts_known_to_end_a_server_or_to_hold_it_do_neither",
    ),
    Fault(
        "budget-without-a-streams-header",
        "MAXSIZE counts every byte of the reply but its outermost header.",
        "commands/streams/read.py",
        "_Answer.end",
        "self.size += len(b'*%d\\r\\n' % count)",
        "",
        "tests/commands/test_read_budgets.py::test_a_budget_leaves_the_longest_beginning_that_it_allows",
    ),
    Fault(
        "released-entry-behind-the-owned",
        "Released entries are claimed first, in the order of their release.",
        "engine/streams/pending.py",
        "TimeOrder.release",
        "self._link(record, self._zone_end)",
        "self._link(record, None)",
        "tests/engine/test_pending.py::test_time_order_is_the_released_first_then_by_time",
    ),
    Fault(
        "position-not-moved",
        "An entry is delivered as new once in a group.",
        "engine/streams/stream.py",
        "Stream._advance",
        "group.last_id = ids[-1]",
        "group.last_id = ids[0]",
        "tests/engine/test_machine.py::test_commands_answer_as_the_model_and_the_log_says_it_all",
        (*ASSERTION, "KeyError"),
    ),
    Fault(
        "checksum-of-a-file-not-compared",
        "A damaged RDB file is refused.",
        "engine/serialization/rdb/reading.py",
        "_File._end",
        "if said not in {0, made}: ...",
        "if said not in {0, made, said}: ...",
        "tests/engine/test_rdb_files.py::test_damaged_files_are_refused_by_their_checksum",
    ),
)
