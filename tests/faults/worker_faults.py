"""Faults in the worker, its dead letters and related commands, which lose a job or run it for ever."""

from faults.planting import Fault

CONTRACT = "tests/worker/subscriber/test_contract.py"
FENCING = "tests/worker/settlement/test_fencing.py"
OWNERS = "tests/worker/partitions/test_ownership.py"

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
        "tests/worker/process/test_processes.py::test_a_worker_killed_anywhere_loses_nothing[redis-before_handler]",
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
        "unlimited-retries",
        "A failing entry is tried as often as allowed.",
        "worker/model/retry.py",
        "Retry.exhausted",
        "return bool(self.max_deliveries) and deliveries >= self.max_deliveries",
        "return False",
        "tests/worker/model/test_retry.py::test_the_limit_counts_deliveries_exactly",
    ),
    Fault(
        "poison-runs-for-ever",
        "An entry that kills its process is set aside.",
        "worker/model/retry.py",
        "run_mode",
        "if limit and counted > limit: ...",
        "if limit and counted > limit + 1000: ...",
        f"{CONTRACT}::test_entries_that_kill_their_process_are_not_run_for_ever",
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
        "no-fencing",
        "A worker that lost its entry can no longer acknowledge it.",
        "worker/settlement/fence.lua",
        "",
        "if row[2] == owner and (row[4] == count or count == 0) then",
        "if row[4] >= 0 then",
        f"{FENCING}::test_every_outcome_is_fenced[redis-ack]",
    ),
    Fault(
        "result-without-an-ack",
        "A job's result is what the run returned whose acknowledgement the server took.",
        "worker/settlement/fence.lua",
        "",
        "if kept == 0 then return {refused} end",
        """
        if kept == 0 then
          local last = at + (record ~= '' and #ids or 0)
          if ARGV[last + 1] then redis.call('HSET', ARGV[last + 1], ARGV[last + 2], ARGV[last + 3]) end
          return {refused}
        end
        """,
        "tests/worker/jobs/test_results.py::test_a_late_run_does_not_write_its_result[redis]",
    ),
    Fault(
        "cancelled-job-begins",
        "After a cancel that returned True, a job that has not begun never begins.",
        "worker/subscriber/runs.py",
        "SingleRuns.start",
        "if held.__class__ is not Held and not await self._after.may_begin([held], self._gate): ...",
        "",
        "tests/worker/jobs/test_cancel.py::test_a_queued_job_never_begins[redis]",
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
        "put-back-twice",
        "A dead letter that two operators put back at once is put back once.",
        "client/dead_letter/put_back.py",
        "PutBack._plan",
        "[('WATCH', key), *(('XRANGE', key, wanted, wanted) for wanted in ids)]",
        "[('PING',), *(('XRANGE', key, wanted, wanted) for wanted in ids)]",
        "tests/worker/test_dead.py::test_two_operators_put_each_letter_back_once",
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
        "limits-of-each-process",
        "A rate holds for all workers together.",
        "client/limits/limit.lua",
        "",
        "local filled = type(kept) == 'string' and tonumber(kept) or 0",
        "local filled = 0",
        "tests/worker/limits/test_limits.py::test_a_rate_holds_for_all_workers_together[redis]",
    ),
    Fault(
        "waiting-is-charged",
        "An entry that a limit puts aside is not charged with a delivery.",
        "worker/limits/limiter.py",
        "Limiter._put_aside",
        "self._acks.settle(Settlement(held, Event.RETRY, charge=not charged, delay_ms=round(due - now)))",
        "self._acks.settle(Settlement(held, Event.RETRY, charge=charged, delay_ms=round(due - now)))",
        "tests/worker/limits/test_limits.py::test_a_rate_by_key_puts_entries_aside_uncharged[redis]",
    ),
    Fault(
        "slots-for-all",
        "No more run at a time than a limit lets, in the whole fleet.",
        "client/limits/limit.lua",
        "",
        "granted = math.max(most - used, 0)",
        "granted = granted",
        "tests/worker/limits/test_limits.py::test_so_many_run_at_a_time_in_the_fleet[redis-k]",
    ),
    Fault(
        "published-twice",
        "A publish with `retry` is added once.",
        "worker/handlers/unique.lua",
        "",
        "if id then return id end",
        "",
        "tests/worker/handlers/test_publishing.py::test_a_publish_whose_reply_is_lost_is_sent_again_and_added_once[redis]",
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
        "once-again",
        "An effect by `once` is there once, however often the entry is delivered.",
        "worker/handlers/once.lua",
        "",
        "if before == 'done' then return 0 end",
        "",
        "tests/worker/handlers/test_idempotency.py::test_an_effect_is_there_once_however_often_the_entry_is_delivered",
    ),
    Fault(
        "partition-read-without-a-watch",
        "Only the owner of a partition reads it.",
        "worker/settlement/read_fence.py",
        "ReadFence.__init__",
        "self._watch: tuple[Command, ...] = (('WATCH', lease.key), ('GET', lease.key))",
        "self._watch: tuple[Command, ...] = (('PING',), ('GET', lease.key))",
        f"{OWNERS}::test_an_owner_of_before_reads_nothing[redis-other]",
    ),
    Fault(
        "partition-of-a-frozen-member",
        "A member that takes nothing leaves no partition without an owner.",
        "worker/partitions/division.py",
        "Division.wanted",
        "late = [one for one in free[room:] if self.beyond and self.looks[one] >= FREE_LOOKS]",
        "late: list[int] = []",
        f"{OWNERS}::test_a_member_that_takes_nothing_leaves_nothing_without_an_owner[redis]",
    ),
    Fault(
        "new-entries-before-old-ones",
        "A new owner runs what is pending before it reads on.",
        "worker/subscriber/fetch.py",
        "Fetcher.__init__",
        "self.taking_over = owned is not None",
        "self.taking_over = False",
        f"{OWNERS}::test_entries_of_an_owner_that_was_killed_run_before_new_ones[redis]",
    ),
    Fault(
        "lease-renewed-by-name",
        "A lease is renewed by its name and its fence number.",
        "client/partitions/lease.lua",
        "",
        "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end",
        """
        local name = '^(.*):'
        if string.match(redis.call('GET', KEYS[1]) or '', name) ~= string.match(ARGV[2], name) then return 0 end
        """,
        f"{OWNERS}::test_a_renewal_needs_the_whole_text[redis]",
    ),
    Fault(
        "second-termination-kills",
        "SIGTERMs within two seconds are one.",
        "ending.py",
        "Ending.at_once",
        "return number == signal.SIGINT or now - self._first > ONE_WISH",
        "return number == signal.SIGINT or now >= self._first",
        "tests/cli/test_signals.py::test_terminations_within_two_seconds_are_one",
    ),
    Fault(
        "terminal-obeys-a-stranger",
        "What is shown moves no terminal's cursor.",
        "printable.py",
        "printable",
        "if text.isprintable(): ...",
        "if text: ...",
        "tests/cli/test_tables.py::test_nothing_that_is_shown_moves_a_cursor[table]",
    ),
    Fault(
        "lost-link-passed-over",
        "A replica whose primary is gone needs a person.",
        "ops/findings/status.py",
        "_link",
        'if link is None or link.state == "up": ...',
        "if link is not None: ...",
        "tests/ops/test_server_advice.py::test_a_replica_of_nobody_needs_a_person",
    ),
    Fault(
        "a-partition-before-its-parents",
        "A partition is read once all that may have earlier entries of its keys are drained.",
        "client/partitions/drained.py",
        "to_read",
        "ready = all(done[one] for one in parents)",
        "ready = True",
        "tests/worker/partitions/test_repartition.py::test_a_partition_waits_for_its_own_parents_only[redis]",
    ),
)
