"""Faults in the worker: ways to lose a job, to run it for ever, or to bury it twice."""

from faults.planting import Fault

CONTRACT = "tests/worker/test_contract.py"
DEAD = "tests/worker/test_dead.py"
KILLED = "tests/worker/test_processes.py::test_a_worker_killed_anywhere_loses_nothing"
POLICY = "tests/worker/test_policy.py"

FAULTS = (
    Fault(
        "ack-before-handler",
        "An entry is acknowledged when its handler has returned, not before.",
        "worker/loop.py",
        '        hooks.reach("before_handler")\n',
        '        await member.line.call("XACK", member.stream, member.group, held.id)\n'
        '        hooks.reach("before_handler")\n',
        f"{KILLED}[redis-before_handler]",
    ),
    Fault(
        "noack-reads",
        "The server keeps an entry pending while it runs.",
        "worker/reading.py",
        "        if member.no_ack:\n            command.append",
        "        if member.group:\n            command.append",
        f"{KILLED}[redis-before_handler]",
    ),
    Fault(
        "dead-letter-in-two-steps",
        "A dead letter is written and its entry acknowledged in one step.",
        "worker/burial.py",
        '                hooks.reach("in_dead")\n'
        "                self._sent.update(held.id for held, _ in mine)\n"
        "                if await member.private.atomic(self._commands(mine)) is not None:\n",
        "                self._sent.update(held.id for held, _ in mine)\n"
        "                add, ack = self._commands(mine)\n"
        "                await member.private.calls([add])\n"
        '                hooks.reach("in_dead")\n'
        "                if await member.private.calls([ack]) is not None:\n",
        f"{KILLED}[redis-in_dead]",
    ),
    Fault(
        "burial-does-not-look",
        "An entry that another worker has by now is not buried.",
        "worker/burial.py",
        "            if rows and rows[0][1] == owner and rows[0][3] == held.deliveries:\n",
        "            if True:\n",
        f"{CONTRACT}::test_an_entry_that_changed_hands_is_not_buried",
    ),
    Fault(
        "unlimited-retries",
        "A failing entry is tried as often as allowed.",
        "worker/policy.py",
        "        return bool(self.max_deliveries) and deliveries >= self.max_deliveries\n",
        "        return False\n",
        f"{POLICY}::test_the_limit_counts_deliveries_exactly",
    ),
    Fault(
        "one-retry-too-many",
        "The limit counts deliveries exactly.",
        "worker/policy.py",
        "        return bool(self.max_deliveries) and deliveries >= self.max_deliveries\n",
        "        return bool(self.max_deliveries) and deliveries > self.max_deliveries\n",
        f"{POLICY}::test_the_limit_counts_deliveries_exactly",
    ),
    Fault(
        "poison-runs-for-ever",
        "An entry that kills its process is set aside.",
        "worker/policy.py",
        "    if limit and counted > limit:\n",
        "    if limit and counted > limit + 1_000:\n",
        f"{CONTRACT}::test_entries_that_kill_their_process_are_not_run_for_ever",
    ),
    Fault(
        "innocents-pay",
        "What was beside an entry that kills its process is not set aside with it.",
        "worker/policy.py",
        "        return Course.ALONE if counted == limit + 1 and crashes > 0 and not known.alone else Course.DEAD\n",
        "        return Course.DEAD\n",
        "tests/worker/test_crashes.py::test_a_lost_record_costs_no_innocent_its_life",
    ),
    Fault(
        "suspects-run-together",
        "After a second crash an entry runs alone.",
        "worker/policy.py",
        "    return Course.ALONE if known.pardoned else Course.TOGETHER\n",
        "    return Course.TOGETHER\n",
        "tests/worker/test_crashes.py::test_after_a_second_crash_each_runs_alone_and_the_others_are_not_charged",
    ),
    Fault(
        "suspects-are-charged-while-they-wait",
        "A crash beside a suspect that waits to be alone is not charged to it.",
        "worker/records.py",
        "        replies = await line.calls([*writing, *self._recount(alone, -1)])\n",
        "        replies = await line.calls([*writing, *self._recount(alone, 0)])\n",
        "tests/worker/test_crashes.py::test_after_a_second_crash_each_runs_alone_and_the_others_are_not_charged",
    ),
    Fault(
        "refused-outcomes-are-forgotten",
        "An outcome that the server refuses is sent again.",
        "worker/ledger.py",
        "        if not clean:\n            self._keep(acks, releases, retries)\n",
        "",
        "tests/worker/test_crashes.py::test_an_outcome_the_server_refuses_is_sent_again",
    ),
    Fault(
        "no-fencing",
        "A worker that lost its entry can no longer acknowledge it.",
        "worker/ledger.py",
        "            doubtful = self._member.stale_among(everything)\n",
        "            doubtful: list[Held] = []\n",
        f"{CONTRACT}::test_a_worker_that_lost_its_entry_can_no_longer_ack_it",
    ),
    Fault(
        "no-heartbeat",
        "A long handler keeps its entry.",
        "worker/leases.py",
        "        for start in range(0, len(due), _CHUNK):\n",
        "        for start in range(0, len(due) * 0, _CHUNK):\n",
        f"{CONTRACT}::test_long_handlers_and_waiting_entries_keep_their_lease",
    ),
    Fault(
        "outcomes-lost-with-the-connection",
        "An outcome is sent until the server has confirmed it.",
        "worker/ledger.py",
        "        self._acks[:0] = [held for held in acks if held.state is State.ACKING]\n",
        "",
        f"{CONTRACT}::test_a_server_restart_is_survived",
    ),
    Fault(
        "handing-back-is-charged",
        "What is handed back unrun counts no delivery.",
        "worker/loop.py",
        "            self._ledger.release(held, charge=False)\n            self.stats.released += 1\n\n"
        "    async def _leave",
        "            self._ledger.release(held, charge=True)\n            self.stats.released += 1\n\n"
        "    async def _leave",
        f"{CONTRACT}::test_stop_hands_back_what_was_not_started_uncharged_and_at_once",
    ),
    Fault(
        "stop-keeps-what-it-has",
        "A stop hands back what was not started.",
        "worker/loop.py",
        "        self._hand_back()\n        self._suspects.stop()\n"
        "        await self._end_reader()\n        self._hand_back()  #",
        "        self._suspects.stop()\n        await self._end_reader()\n        self._buffer.clear()  #",
        f"{CONTRACT}::test_stop_hands_back_what_was_not_started_uncharged_and_at_once",
    ),
    Fault(
        "two-outcomes",
        "An entry gets one outcome.",
        "worker/settle.py",
        "    State.ACKED: {},\n",
        "    State.ACKED: {Event.RETRY: State.RETRYING},\n",
        "tests/worker/test_settle.py::test_a_second_outcome_is_an_error_that_says_so",
    ),
    Fault(
        "put-back-twice",
        "A dead letter that two operators put back at once is put back once.",
        "worker/graveyard.py",
        '[("WATCH", self.key)] if watch else []',
        '[("PING",)] if watch else []',
        f"{DEAD}::test_two_operators_put_each_letter_back_once",
    ),
    Fault(
        "letter-stays-dead",
        "A dead letter that was put back is gone.",
        "worker/graveyard.py",
        '        commands.append(("XDEL", self.key, *(grave.id for grave, _ in letters)))\n',
        '        commands.append(("XLEN", self.key))\n',
        f"{DEAD}::test_retry_gives_the_handler_what_it_got_the_first_time",
    ),
    Fault(
        "deaths-forgotten",
        "An entry that was put back keeps the record of its deaths.",
        "worker/deadletter.py",
        "    deaths = [*letter.history, death]\n",
        "    deaths = [death]\n",
        f"{DEAD}::test_an_entry_that_was_put_back_decodes_as_before_and_keeps_its_deaths",
    ),
    Fault(
        "refused-letter-gone",
        "A dead letter whose stream takes no more entries is still there.",
        "worker/graveyard.py",
        'again = _checked(await self._ask("XADD", self.key, "*", *grave.flat), self.key)',
        'again = _checked(await self._ask("ECHO", "0-0"), self.key)',
        f"{DEAD}::test_a_letter_that_cannot_be_put_back_stays",
    ),
    Fault(
        "once-again",
        "An effect by `once` is there once, however often the entry is delivered.",
        "worker/once.py",
        "if before == 'done' then return 0 end",
        "",
        "tests/worker/test_once.py::test_an_effect_is_there_once_however_often_the_entry_is_delivered",
    ),
    Fault(
        "once-by-the-new-id",
        "An entry that was dead and is put back has its effect once.",
        "worker/once.py",
        "{msg.group}:{msg.origin}",
        "{msg.group}:{msg.id}",
        "tests/worker/test_once.py::test_a_dead_entry_that_is_put_back_has_its_effect_once_in_every_group",
    ),
)
