"""Faults in the node, the committer and the connections: ways to show a write before it is durable, or to lose it."""

from faults.planting import ASSERTION, Fault

TURNS = "tests/server/sessions/test_turns.py"
COMMITTER = "tests/server/load/test_committer.py"
OUTAGE = "tests/node/test_outage.py"
PLAIN = "tests/server/disk/test_shown.py::test_nothing_plain_is_shown_before_it_is_durable"
NODE_LOG = "tests/node/test_log.py"
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
        "expired-by-a-reader-is-not-counted",
        "INFO's expired_keys counts a key that a command came upon.",
        "commands/context/context.py",
        "Context._delete_expired",
        "self.host.lookups.expired += 1",
        "",
        "tests/server/process/test_monitoring.py::test_a_key_is_counted_as_expired_once_whoever_finds_it",
    ),
    Fault(
        "dump-shows-times-before-durable",
        "DUMP, which tells when consumers were seen, waits for the disk like XINFO.",
        "node/durability/outage.py",
        "shows_times",
        "return row.name.startswith('xinfo') or row.name == 'dump'",
        "return row.name.startswith('xinfo')",
        "tests/server/disk/test_shown.py::test_nothing_is_shown_before_it_is_durable[dump]",
    ),
    Fault(
        "released-before-the-sync",
        "Under always a reply waits for the sync, not for the write.",
        "node/durability/group_commit.py",
        "GroupCommit.next_step",
        "return self._durably() if self._policy == 'always' else CommitStep.WRITE",
        "return CommitStep.WRITE",
        f"{COMMITTER}::test_always_releases_after_the_sync",
    ),
    Fault(
        "quick-disk-is-not-waited-for",
        "Under always a reply waits for the sync, also where the loop itself waits for the disk.",
        "node/durability/group_commit.py",
        "perform",
        "if step.syncs: ...",
        "if step.in_thread: ...",
        f"{COMMITTER}::test_a_quick_disk_is_waited_for_and_a_slow_one_is_not",
    ),
    Fault(
        "turn-answers-before-its-commit",
        "What was run together in a turn is answered when it is where the fsync mode promises.",
        "server/app.py",
        "Server.end_turn",
        "return barrier, VOID < barrier <= gate.released and not gate.holders and self.failure is None",
        "return 0, True",
        "tests/server/disk/test_shown.py::test_nothing_plain_is_shown_before_it_is_durable[XLEN-alone]",
        core="native",
    ),
    Fault(
        "killed-in-a-turn-and-answered",
        "Who was killed in a turn is sent nothing at its end.",
        "server/sockets.py",
        "SocketTransport._lose",
        "self._take_back()",
        "",
        f"{TURNS}::test_who_is_killed_in_a_turn_is_sent_nothing_in_it",
        core="native",
    ),
    Fault(
        "replies-one-shorter-than-their-clients",
        "Where memory ends in a turn, no client is sent what another asked for.",
        "server/sockets.py",
        "Sockets.put_off",
        "del self._answered[number:]",
        "",
        "tests/server/sessions/test_turn_memory.py::test_each_is_answered_once_or_closed_whichever_allocation_fails[None]",
        core="native",
    ),
    Fault(
        "found-nothing-and-kept-its-place",
        "Who waits in a group and was looked at waits on behind those who began to wait meanwhile.",
        "node/node.py",
        "Node._served_quickly",
        "self.waits.wait_on(waiter)",
        "",
        "tests/node/test_waking.py::test_waiting_commands_are_served_alike_either_way[0]",
    ),
    Fault(
        "put-off-reply-sent-twice",
        "What was put off to the end of a turn and has left before is not sent again.",
        "server/sockets.py",
        "Sockets.take_back",
        "self._answered[number], self._replies[number] = (None, _NONE)",
        "self._answered[number] = None",
        f"{TURNS}::test_what_was_put_off_and_then_sent_at_once_is_sent_once",
        core="native",
    ),
    Fault(
        "released-before-the-write",
        "Under everysec and no a reply waits for the write.",
        "node/durability/group_commit.py",
        "GroupCommit.done",
        "before = self.gate.released",
        """
        before = self.gate.released
        if report.step is CommitStep.WRITE:
            self.gate.released = self._log.appended
        """,
        f"{COMMITTER}::test_others_release_nothing_that_is_not_written",
    ),
    Fault(
        "failed-disk-releases",
        "After a failed sync no reply is released.",
        "node/durability/group_commit.py",
        "GroupCommit.done",
        "self.fail(report.error, now)",
        """
        self.fail(report.error, now)
        self.gate.released = self._log.appended
        """,
        f"{COMMITTER}::test_broken_disk_releases_nothing",
    ),
    Fault(
        "failed-disk-goes-on",
        "A failed disk ends the server.",
        "server/app.py",
        "Server.fail",
        "self.stopping.set()",
        "",
        "tests/server/process/test_process.py::test_failed_disk_ends_the_server",
        (*ASSERTION, "TimeoutExpired"),
    ),
    Fault(
        "everysec-never-syncs",
        "Under everysec what was written is synced by itself.",
        "node/durability/group_commit.py",
        "GroupCommit.done",
        "if report.step is CommitStep.WRITE and self._policy == 'everysec' and self.sync_at is None: ...",
        "if report.step is CommitStep.WRITE and self._policy == 'never' and self.sync_at is None: ...",
        f"{COMMITTER}::test_everysec_syncs_by_itself",
    ),
    Fault(
        "everysec-waits-for-the-loop",
        "Under everysec a command that keeps all others waiting does not keep what was acknowledged from the disk.",
        "server/committer.py",
        "Committer._settle",
        "self._steps.put(time.monotonic() + self._sync_seconds)",
        "pass",
        f"{COMMITTER}::test_everysec_syncs_while_one_command_keeps_the_loop",
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
        "stop-does-not-commit",
        "A stop brings everything to the disk first.",
        "server/committer.py",
        "Committer.close",
        "self._start(CommitStep.WRITE_AND_SYNC)",
        "",
        f"{COMMITTER}::test_closing_leaves_nothing_behind_for_the_next_turn",
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
        "replies-overtake",
        "A reply never overtakes an earlier one of its connection.",
        "node/durability/held_replies.py",
        "HeldReplies.hold",
        "if self._queue or barrier > self._gate.released: ...",
        "if barrier > self._gate.released: ...",
        "tests/server/disk/test_shown.py::test_no_reply_overtakes_one_that_waits",
    ),
    Fault(
        "connection-ignores-barriers",
        "A reply waits for its barrier.",
        "node/durability/held_replies.py",
        "HeldReplies.hold",
        "if self._queue or barrier > self._gate.released: ...",
        "if self._queue: ...",
        f"{SHOWN}[reply]",
    ),
    Fault(
        "barrier-of-the-last-alone",
        "Replies that leave together wait for the highest of their barriers.",
        "server/connection.py",
        "Connection._gather",
        "self._out_barrier = max(self._out_barrier, barrier)",
        "self._out_barrier = barrier",
        f"{SHOWN}[xinfo]",
    ),
    Fault(
        "plain-reply-before-durable",
        "The replies of plain commands that take the short way wait for their record.",
        "server/connection.py",
        "Connection._run_directly",
        "self._send([replies], barrier)",
        "self._send([replies], 0)",
        f"{PLAIN}[XLEN-alone]",
    ),
    Fault(
        "plain-reply-before-half-a-command-before-durable",
        "The replies of plain commands before half a command wait for their record.",
        "server/connection.py",
        "Connection._take",
        "self._gather([run.replies], server.node.journal.position)",
        "self._gather([run.replies], 0)",
        f"{PLAIN}[XLEN-before-a-half]",
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
        "wake-up-before-durable",
        "A waiting reader is not woken by a write that is not durable.",
        "node/clients/sessions.py",
        "Sessions.send",
        "self.outbox.append((session, outcome or Outcome([], 0)))",
        "self.outbox.append((session, Outcome(outcome.buffers if outcome else [], 0)))",
        f"{SHOWN}[wake-up]",
    ),
    Fault(
        "group-wake-up-before-durable",
        "A waiting consumer is not given an entry, or its delivery, that is not durable.",
        "node/node.py",
        "Node._retry",
        """
        self._flush(now)
        self.sessions.send(session, reply, row)
        """,
        """
        self.sessions.send(session, reply, row)
        self._flush(now)
        """,
        f"{NODE_LOG}::test_a_woken_reader_waits_for_the_record_of_its_delivery",
    ),
    Fault(
        "event-before-durable",
        "A keyspace event does not tell of a write that is not durable.",
        "node/clients/sessions.py",
        "Sessions.send_messages",
        "(session, Outcome(encode(push, session.resp), barrier))",
        "(session, Outcome(encode(push, session.resp), barrier * (b'__key' not in push.items[1])))",
        f"{SHOWN}[event]",
    ),
    Fault(
        "message-before-durable",
        "A published message comes behind the writes before it.",
        "node/clients/sessions.py",
        "Sessions.send_messages",
        "self.outbox.append((session, Outcome(encode(push, session.resp), barrier)))",
        "self.outbox.append((session, Outcome(encode(push, session.resp), barrier * (b'__key' in push.items[1]))))",
        f"{SHOWN}[message]",
    ),
    Fault(
        "messages-before-the-record",
        "An event waits for the record of its own command.",
        "node/clients/sessions.py",
        "Sessions.publish",
        "self._messages += found",
        """
        for session, push in found:
            self.outbox.append((session, Outcome(encode(push, session.resp), self._replies._journal.position)))
        """,
        f"{SHOWN}[event]",
    ),
    Fault(
        "script-before-durable",
        "A script's reply waits for what it wrote.",
        "node/node.py",
        "Node.context",
        "return Context(self.host, session, now, self.journal.note, self.sessions.notify, origin)",
        """
        note = self.journal.note
        if origin is Origin.SCRIPT:
            return Context(
                self.host, session, now, lambda step, _: note(step, True), self.sessions.notify, origin
            )
        return Context(self.host, session, now, note, self.sessions.notify, origin)
        """,
        f"{SHOWN}[script]",
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
        "transaction-before-durable",
        "EXEC's reply waits for what the transaction wrote.",
        "node/clients/replies.py",
        "Replies.outcome",
        "barrier = journal.log.appended if shows_soft else journal.position",
        """
        barrier = journal.log.appended if shows_soft else journal.position
        barrier *= row is None or row.name != 'exec'
        """,
        f"{SHOWN}[transaction]",
    ),
    Fault(
        "barrier-of-the-record-before",
        "A write waits for its own record, not for the one before it.",
        "node/node.py",
        "Node.execute",
        """
        self._flush(now)
        outcome = self.replies.outcome(session, reply, row)
        """,
        """
        outcome = self.replies.outcome(session, reply, row)
        self._flush(now)
        """,
        f"{NODE_LOG}::test_a_write_waits_for_its_own_record",
    ),
    Fault(
        "xinfo-before-durable",
        "XINFO does not show a seen time that is not durable.",
        "node/clients/replies.py",
        "Replies.outcome",
        "barrier = journal.log.appended if shows_soft else journal.position",
        "barrier = journal.position",
        f"{NODE_LOG}::test_a_consumer_seen_again_delays_only_those_who_look",
    ),
    Fault(
        "recovered-state-before-durable",
        "What was recovered counts as written.",
        "node/journal.py",
        "Journal.recovered",
        "if self.log is not None: ...",
        "",
        f"{NODE_LOG}::test_a_recovered_node_answers_behind_its_log",
    ),
    Fault(
        "transaction-in-pieces",
        "A transaction is whole in the log or absent.",
        "node/node.py",
        "Node._exec",
        "reply = self.run(ctx, row, argv)",
        """
        reply = self.run(ctx, row, argv)
        self._flush(now)
        """,
        "tests/node/test_transactions.py::test_a_transaction_is_one_record",
    ),
    Fault(
        "half-of-a-broken-command-unlogged",
        "What a defect left behind in memory is in the log.",
        "node/node.py",
        "Node._call",
        "log.exception('internal error in %s', row.name)",
        """
        self.journal._steps.clear()
        log.exception('internal error in %s', row.name)
        """,
        f"{NODE_LOG}::test_what_a_defect_left_behind_is_logged_all_the_same",
    ),
    Fault(
        "expiry-unlogged",
        "The death of a key is in the log, so that recovery never looks at a clock.",
        "commands/context/context.py",
        "Context._delete_expired",
        "self.commit(('unset', db.index, key))",
        "self.host.keyspace.apply(('unset', db.index, key))",
        f"{NODE_LOG}::test_the_death_of_a_key_is_logged",
    ),
    Fault(
        "save-does-not-sync",
        "SAVE answers when everything is on the medium.",
        "node/journal.py",
        "Journal.save",
        "self.log.sync()",
        "",
        "tests/server/disk/test_shown.py::test_save_is_a_sync",
        which="2 of 2",
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
        "full-disk-forgets",
        "What a full disk refused is written when there is space.",
        "persistence/log.py",
        "Log._put",
        "self._take_back()",
        """
        self._take_back()
        self._batch = []
        """,
        "tests/persistence/test_crash.py::test_a_full_disk_refuses_and_goes_on_when_there_is_space",
    ),
    Fault(
        "stop-on-a-full-disk-releases",
        "A stop on a full disk releases nothing that is not on it.",
        "server/committer.py",
        "Committer.close",
        "self._steps.put(None)",
        """
        self.gate.released = self._log.appended
        self.gate.open()
        self._steps.put(None)
        """,
        f"{COMMITTER}::test_closing_on_a_full_disk_releases_nothing",
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
        "self._cut(f'it left {held} bytes of replies untaken')",
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
        "handshakes-without-bound",
        "So many connections agree on keys at a time.",
        "server/accepting.py",
        "Listener._has_place",
        "if served is None or len(self._shaking) < handshakes_at(descriptors(), served.handshakes): ...",
        "if True: ...",
        "tests/server/disk/test_descriptors.py::test_slow_handshakes_give_way",
    ),
    Fault(
        "closing-is-gone",
        "Who has not taken the last replies is a client until the connection is gone.",
        "server/connection.py",
        "Connection._close_if_done",
        "if not self._holds_output(): ...",
        "if True: ...",
        "tests/server/sessions/test_closing.py::test_who_does_not_take_the_last_replies_stays_a_client[asyncio-quit]",
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
        "expired-key-breaks-a-watch",
        "A key whose time has come is none for WATCH, in whichever database.",
        "commands/keyspace/keys.py",
        "swapdb",
        """
        ctx.lookup(key, one)
        ctx.lookup(key, two)
        """,
        "",
        "tests/server/commands/test_watch_live.py::test_a_key_whose_time_has_come_is_none_for_watch",
    ),
    Fault(
        "old-message-forgotten-at-once",
        "A stream remembers a message that is too old until the look that comes once a second.",
        "node/cron.py",
        "",
        "FORGETTING = 1000",
        "FORGETTING = 0",
        "tests/engine/test_idempotence.py::test_a_message_that_is_too_old_is_remembered_until_the_next_look",
        which="1 of 2",
    ),
)
