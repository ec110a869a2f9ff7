"""Faults in the worker: ways to lose a job, to run it for ever, or to write its dead letter twice."""

from faults.planting import Fault

CONTRACT = "tests/worker/subscriber/test_contract.py"
DEAD = "tests/worker/test_dead.py"
PUT_BACK = "tests/worker/test_put_back.py"
KILLED = "tests/worker/process/test_processes.py::test_a_worker_killed_anywhere_loses_nothing"
FENCING = "tests/worker/settlement/test_fencing.py"
FROZEN = f"{FENCING}::test_what_a_frozen_process_says_of_an_entry_it_lost_is_refused"
POLICY = "tests/worker/model/test_retry.py"

FAULTS = (
    Fault(
        "ack-before-handler",
        "An entry is acknowledged when its handler has returned, not before.",
        "worker/subscriber/runs.py",
        "SingleRuns.start",
        "held.step(Event.START)",
        """
        held.step(Event.START)
        await self._member.line.call('XACK', self._member.stream, self._member.group, held.id)
        """,
        f"{KILLED}[redis-before_handler]",
    ),
    Fault(
        "noack-reads",
        "The server keeps an entry pending while it runs.",
        "worker/subscriber/fetch.py",
        "Fetcher._command",
        "if member.no_ack: ...",
        "if member.group: ...",
        f"{KILLED}[redis-before_handler]",
    ),
    Fault(
        "dead-letter-in-two-steps",
        "A dead letter is written and its entry acknowledged in one step.",
        "client/dead_letter/transaction.py",
        "DeadLetterTransaction.by_script",
        "before = set(unsure)",
        """
        before = set(unsure)
        yield [('XADD', route.dead, '*', *pack(entry.letter)) for entry in entries]
        """,
        f"{KILLED}[redis-in_dead]",
    ),
    Fault(
        "dead-letter-without-a-look",
        "An entry that another worker has by now is not dead.",
        "client/dead_letter/dead_letter.lua",
        "",
        "elseif rows[1][2] ~= owner or rows[1][4] ~= count then",
        "elseif rows[1][4] < 0 then",
        f"{FENCING}::test_every_outcome_is_fenced[redis-dead]",
    ),
    Fault(
        "dead-letter-by-transaction-without-a-look",
        "The same where no scripts may be run.",
        "client/dead_letter/transaction.py",
        "fate",
        "ours = rows[0][1] == consumer.encode() and rows[0][3] == entry.deliveries",
        "ours = bool(consumer)",
        f"{FROZEN}[redis-no-script]",
    ),
    Fault(
        "transaction-of-a-frozen-process",
        "Where no scripts may be run, what was looked at before a freeze is looked at again.",
        "worker/settlement/dead_letter.py",
        "DeadLetterWriter._fresh",
        "return not self._member.stale_among([one.held for one in batch if one.unsettled])",
        "return bool(batch)",
        f"{FROZEN}[redis-no-script]",
    ),
    Fault(
        "ack-although-the-letter-was-refused",
        "An entry whose dead letter cannot be written stays pending.",
        "client/dead_letter/dead_letter.lua",
        "",
        """
        if type(added) == 'table' then
              found = added.err
        """,
        """
        if type(added) == 'table' then
              redis.call('XACK', KEYS[1], group, id)
              found = added.err
        """,
        f"{FENCING}::test_an_entry_whose_dead_letter_cannot_be_written_stays_pending[redis-full-script]",
    ),
    Fault(
        "letters-that-cannot-be-acked",
        "A worker that may not ack writes no letter.",
        "client/dead_letter/dead_letter.lua",
        "",
        "if type(allowed) == 'table' then return allowed end",
        "",
        f"{FENCING}::test_a_worker_that_may_not_ack_writes_no_letter[redis]",
    ),
    Fault(
        "unlimited-retries",
        "A failing entry is tried as often as allowed.",
        "worker/model/retry.py",
        "Retry.exhausted",
        "return bool(self.max_deliveries) and deliveries >= self.max_deliveries",
        "return False",
        f"{POLICY}::test_the_limit_counts_deliveries_exactly",
    ),
    Fault(
        "one-retry-too-many",
        "The limit counts deliveries exactly.",
        "worker/model/retry.py",
        "Retry.exhausted",
        "return bool(self.max_deliveries) and deliveries >= self.max_deliveries",
        "return bool(self.max_deliveries) and deliveries > self.max_deliveries",
        f"{POLICY}::test_the_limit_counts_deliveries_exactly",
    ),
    Fault(
        "poison-runs-for-ever",
        "An entry that kills its process is set aside.",
        "worker/model/retry.py",
        "course",
        "if limit and counted > limit: ...",
        "if limit and counted > limit + 1000: ...",
        f"{CONTRACT}::test_entries_that_kill_their_process_are_not_run_for_ever",
    ),
    Fault(
        "innocents-pay",
        "What was beside an entry that kills its process is not set aside with it.",
        "worker/model/retry.py",
        "course",
        "return Course.ALONE if counted == limit + 1 and crashes > 0 and (not known.alone) else Course.DEAD",
        "return Course.DEAD",
        "tests/worker/subscriber/test_isolation.py::test_a_lost_record_makes_no_other_entry_dead",
    ),
    Fault(
        "suspects-run-together",
        "After a second crash an entry runs alone.",
        "worker/model/retry.py",
        "course",
        "return Course.ALONE if known.uncharged or known.alone else Course.TOGETHER",
        "return Course.TOGETHER",
        "tests/worker/model/test_course.py::test_without_a_limit_a_killer_is_alone_for_ever_and_never_dead",
    ),
    Fault(
        "suspects-are-charged-while-they-wait",
        "A crash beside an entry that waits to be alone is not charged to it.",
        "worker/settlement/failure_log.py",
        "FailureLog._uncharging",
        "return [FenceStep(emulate.recount(group, consumer, part[0].deliveries - 1), part)"
        " for part in by_count(entries)]",
        "return [FenceStep(emulate.recount(group, consumer, part[0].deliveries), part) for part in by_count(entries)]",
        "tests/worker/subscriber/test_isolation.py::test_after_a_second_crash_each_runs_alone_and_the_others_are_not_charged",
    ),
    Fault(
        "delays-end-with-their-worker",
        "A delay holds whatever becomes of the worker that made it.",
        "worker/subscriber/fetch.py",
        "Fetcher._look_up",
        "if self._delays.left: ...",
        "",
        "tests/worker/subscriber/test_delays.py::test_what_nobody_kept_waiting_is_not_run_before_its_time",
    ),
    Fault(
        "refused-outcomes-are-forgotten",
        "An outcome that the server refuses is sent again.",
        "worker/settlement/acks.py",
        "PendingAcks._flush_outcomes",
        "if not clean: ...",
        "",
        "tests/worker/subscriber/test_isolation.py::test_an_outcome_the_server_refuses_is_sent_again",
    ),
    Fault(
        "no-fencing",
        "A worker that lost its entry can no longer acknowledge it.",
        "worker/settlement/fence.lua",
        "",
        "if row[2] == owner and (row[4] == count or count == 0) then",
        "if row[4] >= 0 then",
        f"{FENCING}::test_every_outcome_is_fenced[redis-ack]",
    ),
    Fault(
        "fence-by-name-alone",
        "A claim under the same consumer name is noticed.",
        "worker/settlement/fence.lua",
        "",
        "if row[2] == owner and (row[4] == count or count == 0) then",
        "if row[2] == owner then",
        f"{FENCING}::test_a_claim_under_the_same_name_is_noticed[redis]",
    ),
    Fault(
        "no-fencing-without-scripts",
        "Where no scripts may be run, what is not surely ours is looked up first.",
        "worker/settlement/fence.py",
        "Fence._look",
        "if not doubtful: ...",
        "if doubtful or not doubtful: ...",
        f"{FROZEN}[redis-no-script]",
    ),
    Fault(
        "stale-commands-are-sent",
        "What waited too long for a connection is not sent.",
        "client/line.py",
        "Line._exchange",
        "sent = [asked for asked in batch if asked[4] is None or _holds(asked)]",
        "sent = [asked for asked in batch if asked[4] is None or True]",
        f"{FENCING}::test_only_if_is_asked_when_the_bytes_leave[redis]",
    ),
    Fault(
        "script-is-never-sent-again",
        "A server that forgot the script gets it again.",
        "worker/settlement/fence.py",
        "no_script",
        "return isinstance(reply, NoScriptError | NoPermissionError)",
        "return isinstance(reply, NoPermissionError)",
        f"{FENCING}::test_a_forgotten_script_is_sent_again[redis]",
    ),
    Fault(
        "no-heartbeat",
        "A long handler keeps its entry.",
        "worker/settlement/leases.py",
        "Leases.renew",
        "if not entries: ...",
        "if entries or not entries: ...",
        f"{CONTRACT}::test_long_handlers_and_waiting_entries_keep_their_lease",
    ),
    Fault(
        "outcomes-lost-with-the-connection",
        "An outcome is sent until the server has confirmed it.",
        "worker/settlement/acks.py",
        "PendingAcks._keep",
        "self._acks[:0] = [held for held in acks if held.state is State.ACKING]",
        "",
        f"{CONTRACT}::test_a_server_restart_is_survived",
    ),
    Fault(
        "lanes-sleep-on",
        "As many handlers run at once as the subscriber allows.",
        "worker/subscriber/buffer.py",
        "Buffer.arrival",
        "self._loop.call_soon(self._wake_more)",
        "",
        f"{CONTRACT}::test_as_many_run_at_once_as_may[redis]",
    ),
    Fault(
        "handing-back-is-charged",
        "What is handed back unrun counts no delivery.",
        "worker/subscriber/buffer.py",
        "Buffer.give_back",
        "self._acks.release(held, charge=False)",
        "self._acks.release(held, charge=True)",
        f"{CONTRACT}::test_stop_hands_back_what_was_not_started_uncharged_and_at_once",
    ),
    Fault(
        "stop-keeps-what-it-has",
        "A stop hands back what was not started.",
        "worker/subscriber/loop.py",
        "SubscriberLoop.stop",
        """
        self._buffer.hand_back()
        self._isolated.stop()
        await self._intake.end()
        self._buffer.hand_back()
        """,
        """
        self._isolated.stop()
        await self._intake.end()
        self._buffer.entries.clear()
        """,
        f"{CONTRACT}::test_stop_hands_back_what_was_not_started_uncharged_and_at_once",
    ),
    Fault(
        "cancelled-lane-keeps-its-entry",
        "What a lane had not begun when the grace time ended is handed back.",
        "worker/subscriber/loop.py",
        "SubscriberLoop.stop",
        "self._buffer.give_back(held)",
        "",
        "tests/worker/subscriber/test_stopping.py::test_a_cancelled_lane_hands_back_what_it_had_not_begun[redis]",
    ),
    Fault(
        "unblock-is-said-once",
        "A word that came before the read it is to end is repeated.",
        "worker/subscriber/intake.py",
        "Intake._end_read",
        "if reply != 0: ...",
        "if reply is not None: ...",
        "tests/worker/subscriber/test_stopping.py::test_a_command_that_came_before_the_read_it_is_to_end_is_repeated[redis]",
    ),
    Fault(
        "acked-without-a-letter",
        "What a transaction acked though its letter was refused is pending again.",
        "client/dead_letter/transaction.py",
        "DeadLetterTransaction._undo",
        "(yield [self._again(entry) for entry in entries])",
        "(yield [('PING',) for _ in entries])",
        "tests/worker/settlement/test_dead_letter.py::test_what_a_transaction_acked_without_a_letter_is_pending_again[redis]",
    ),
    Fault(
        "refused-letter-forgotten",
        "An entry that EXEC acknowledged without a letter is still ours when the connection breaks.",
        "client/dead_letter/transaction.py",
        "DeadLetterTransaction.by_transaction",
        "if move.removed == 1: ...",
        "if move.removed == 2: ...",
        "tests/client/dead_letter/test_transaction.py"
        "::test_what_was_acked_without_a_letter_stays_ours_though_the_connection_breaks",
    ),
    Fault(
        "two-outcomes",
        "An entry gets one outcome.",
        "worker/model/lifecycle.py",
        "",
        "{State.BUFFERED: {Event.START: State.RUNNING, Event.RELEASE: State.RELEASING, Event.DIE: "
        "State.DYING, Event.LOSE: State.LOST}, State.RUNNING: {**_OUTCOMES, Event.LEAVE: State.LEFT, "
        "Event.LOSE: State.LOST}, State.LEFT: {**_OUTCOMES, Event.LOSE: State.LOST}, State.ACKING: "
        "{Event.CONFIRM: State.ACKED, Event.LOSE: State.LOST}, State.RELEASING: {Event.CONFIRM: "
        "State.RELEASED, Event.LOSE: State.LOST}, State.RETRYING: {Event.CONFIRM: State.WAITING, Event.LOSE: "
        "State.LOST}, State.DYING: {Event.CONFIRM: State.DEAD, Event.LOSE: State.LOST}, State.ACKED: {}, "
        "State.RELEASED: {}, State.WAITING: {}, State.DEAD: {}, State.LOST: dict.fromkeys((*_OUTCOMES, "
        "Event.LEAVE, Event.LOSE), State.LOST)}",
        "{State.BUFFERED: {Event.START: State.RUNNING, Event.RELEASE: State.RELEASING, Event.DIE: "
        "State.DYING, Event.LOSE: State.LOST}, State.RUNNING: {**_OUTCOMES, Event.LEAVE: State.LEFT, "
        "Event.LOSE: State.LOST}, State.LEFT: {**_OUTCOMES, Event.LOSE: State.LOST}, State.ACKING: "
        "{Event.CONFIRM: State.ACKED, Event.LOSE: State.LOST}, State.RELEASING: {Event.CONFIRM: "
        "State.RELEASED, Event.LOSE: State.LOST}, State.RETRYING: {Event.CONFIRM: State.WAITING, Event.LOSE: "
        "State.LOST}, State.DYING: {Event.CONFIRM: State.DEAD, Event.LOSE: State.LOST}, State.ACKED: "
        "{Event.RETRY: State.RETRYING}, State.RELEASED: {}, State.WAITING: {}, State.DEAD: {}, State.LOST: "
        "dict.fromkeys((*_OUTCOMES, Event.LEAVE, Event.LOSE), State.LOST)}",
        "tests/worker/model/test_lifecycle.py::test_a_second_outcome_is_an_error_that_says_so",
    ),
    Fault(
        "letters-need-a-right-to-type",
        "The rights that docs/server.md gives a worker are enough for dead letters.",
        "client/dead_letter/transaction.py",
        "DeadLetterTransaction._ours",
        "_check([watched, *pending])",
        "_check([watched, kind, *pending])",
        "tests/client/dead_letter/test_transaction.py::test_a_user_who_may_not_ask_for_the_type_writes_letters",
    ),
    Fault(
        "recovery-acks-what-others-hold",
        "An entry that a worker has claimed stays its own, though it was deleted from the stream.",
        "spark/recovery/settle.py",
        "Settler._write_letters",
        "ours = self._mine(gone) if gone else []",
        "ours = gone",
        "tests/spark/recovery/test_recovery.py"
        "::test_what_a_worker_claimed_stays_its_own_though_the_entry_was_deleted[millstream]",
    ),
    Fault(
        "put-back-twice",
        "A dead letter that two operators put back at once is put back once.",
        "client/dead_letter/put_back.py",
        "PutBack._plan",
        "[('WATCH', key), *(('XRANGE', key, wanted, wanted) for wanted in ids)]",
        "[('PING',), *(('XRANGE', key, wanted, wanted) for wanted in ids)]",
        f"{DEAD}::test_two_operators_put_each_letter_back_once",
    ),
    Fault(
        "letter-stays-dead",
        "A dead letter that was put back is gone.",
        "client/dead_letter/put_back.py",
        "PutBack._relocation",
        "('XDEL', self._key, sent.stored.id)",
        "('XLEN', self._key)",
        f"{DEAD}::test_retry_gives_the_handler_what_it_got_the_first_time",
    ),
    Fault(
        "deaths-forgotten",
        "An entry that was put back keeps the record of its deaths.",
        "client/dead_letter/letter.py",
        "returning",
        "deaths = [*letter.history, death]",
        "deaths = [death]",
        f"{DEAD}::test_an_entry_that_was_put_back_decodes_as_before_and_keeps_its_deaths",
    ),
    Fault(
        "refused-letter-gone",
        "A dead letter that EXEC took out though its stream takes no entry is written again.",
        "client/dead_letter/put_back.py",
        "PutBack._plan_again",
        "('XADD', key, '*', *sent.stored.flat)",
        "('ECHO', '0-0')",
        f"{PUT_BACK}::test_a_letter_that_was_refused_inside_exec_is_written_again_over_the_next_connection",
    ),
    Fault(
        "put-back-blindly",
        "A dead letter whose stream takes no more entries is not touched.",
        "client/dead_letter/put_back.py",
        "PutBack._that_fit",
        "if hinders := hindrance(kind, info, counts[letter.stream]): ...",
        "if hinders := '': ...",
        f"{PUT_BACK}::test_a_stream_that_takes_no_entry_keeps_its_letters_untouched",
    ),
    Fault(
        "letter-forgotten-at-exec",
        "A dead letter whose transaction had no reply is looked for.",
        "client/dead_letter/put_back.py",
        "PutBack._plan",
        "return [self._relocation(sent) for sent in self._sent]",
        """
        fit, self._sent = self._sent, []
        return [self._relocation(sent) for sent in fit]
        """,
        f"{PUT_BACK}::test_letters_are_put_back_once_though_the_connection_breaks_at_exec",
        ("Disconnected",),
    ),
    Fault(
        "deep-json-ends-the-worker",
        "No byte of an entry ends a worker or stops its group.",
        "client/jsontext.py",
        "parse",
        """
        try: ...
        except RecursionError: ...
        """,
        """
        try: ...
        except ZeroDivisionError: ...
        """,
        "tests/worker/subscriber/test_hostile_entries.py::test_a_hostile_history_does_not_stop_the_group[redis-too-deep]",
    ),
    Fault(
        "history-that-cannot-be-written-again",
        "The dead letter of an entry with a strange history is written.",
        "client/dead_letter/letter.py",
        "parse_history",
        "if not isinstance(found, list) or not all((_is_death(death) for death in found)): ...",
        "if not isinstance(found, list): ...",
        "tests/worker/subscriber/test_hostile_entries.py::test_only_what_workers_write_is_a_history",
    ),
    Fault(
        "idle-connection-not-made-anew",
        "A publish on a connection that was closed while it was idle is no error.",
        "client/line.py",
        "Line._exchange",
        "if self._redial and self._connection is not None: ...",
        "if not self._redial and self._connection is not None: ...",
        "tests/worker/handlers/test_publishing.py::test_a_server_that_was_started_again_is_no_error[redis]",
        shows=("Disconnected",),
    ),
    Fault(
        "published-twice",
        "A publish with `retry` is added once.",
        "worker/handlers/sender.py",
        "SCRIPT",
        "if id then return id end",
        "",
        "tests/worker/handlers/test_publishing.py::test_a_publish_whose_reply_is_lost_is_sent_again_and_added_once[redis]",
    ),
    Fault(
        "one-producer-for-all",
        "The same for more publishes at once than the server remembers of one producer.",
        "worker/handlers/sender.py",
        "Sender._new_name",
        "return f'{PRODUCER}:{self._name}:{self._made}'",
        "return PRODUCER",
        "tests/worker/handlers/test_publishing.py::test_very_many_at_once_are_each_added_once[millstream]",
    ),
    Fault(
        "one-producer-for-given-ids",
        "A publish with an id of the caller's is added once, however many others come meanwhile.",
        "worker/handlers/publish.py",
        "producer_of",
        "return f\"{PRODUCER}:{zlib.crc32(idempotent.encode(errors='surrogatepass')) % _PRODUCERS}\"",
        "return f\"{PRODUCER}:{zlib.crc32(idempotent.encode(errors='surrogatepass')) % 1}\"",
        "tests/worker/handlers/test_publishing.py::test_very_many_with_ids_of_their_own_are_each_added_once[millstream]",
    ),
    Fault(
        "blocked-worker-disappears",
        "A worker whose handler blocks the event loop stays in the registry.",
        "worker/registry/watchdog.py",
        "Watchdog._await_answer",
        "if self.blocked is not None and now - beaten >= protocol.BEAT: ...",
        "if self.blocked is not None and now - beaten >= 3600: ...",
        "tests/worker/registry/test_watchdog.py::test_the_registry_keeps_a_blocked_worker_beyond_its_time_to_live[redis]",
        shows=("Failed", "AssertionError", "Timeout"),
    ),
    Fault(
        "control-characters-in-logs",
        "No control character of others reaches a worker's log.",
        "logs.py",
        "logger",
        "found.addFilter(_harmless)",
        "",
        "tests/worker/test_failures_told.py::test_no_control_character_of_others_reaches_the_log[redis]",
    ),
    Fault(
        "health-for-any-host",
        "The health endpoint answers only requests for itself.",
        "worker/monitoring/health.py",
        "_is_allowed",
        "if not name or '*' in names or name in names or name.endswith('.localhost'): ...",
        "if not name or '*' in names or name in names or name.endswith(''): ...",
        "tests/worker/monitoring/test_health.py::test_the_endpoint_answers_only_requests_for_itself",
    ),
    Fault(
        "negative-counts-are-few",
        "A delivery count that turned negative is above every limit.",
        "worker/model/retry.py",
        "tries",
        "deliveries += 2 ** 64",
        "deliveries += 0",
        f"{POLICY}::test_a_count_that_turned_negative_is_above_every_limit",
    ),
    Fault(
        "once-again",
        "An effect by `once` is there once, however often the entry is delivered.",
        "worker/handlers/idempotency.py",
        "SCRIPT",
        "if before == 'done' then return 0 end",
        "",
        "tests/worker/handlers/test_idempotency.py::test_an_effect_is_there_once_however_often_the_entry_is_delivered",
    ),
    Fault(
        "once-by-the-new-id",
        "An entry that was dead and is put back has its effect once.",
        "worker/handlers/idempotency.py",
        "marker",
        "return beside(msg.stream, 'once', f'{msg.group}:{msg.origin}')",
        "return beside(msg.stream, 'once', f'{msg.group}:{msg.id}')",
        "tests/worker/handlers/test_idempotency.py::test_a_dead_entry_that_is_put_back_has_its_effect_once_in_every_group",
    ),
)
