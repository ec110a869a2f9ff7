"""Faults in the way of plain commands: in the runner, in what lets it run, and in what brings it bytes."""

from faults.planting import Fault

BATCH = "tests/node/test_batch.py::test_commands_run_together_do_what_they_do_one_by_one"
WAY = "tests/node/test_plain_way.py::test_what_stands_in_the_way_is_seen"
AGAIN = "tests/node/test_plain_way.py::test_plain_commands_are_plain_again_when_nothing_stands_in_the_way"
TURNS = "tests/node/test_plain_way.py::test_a_run_ends_so_that_others_have_their_turn"
RECORD = "tests/node/test_plain_way.py::test_replies_of_a_run_wait_for_its_record"
TIME = "tests/node/test_plain_way.py::test_each_run_has_the_time_it_is_given"
CRASH = "tests/node/test_crash.py::test_a_crash_amid_plain_commands_leaves_a_moment_of_the_past"
KILLS = "tests/server/load/test_plain_kills.py::test_a_server_killed_under_plain_commands_is_as_the_model_says[always]"
CHUNKS = "tests/protocol/test_chunks.py"
PLAIN = "tests/server/disk/test_shown.py::test_nothing_plain_is_shown_before_it_is_durable"


def in_the_way(name: str, breaks: str, condition: str, scene: str) -> Fault:
    """A condition of :meth:`Batches.takes` that somebody forgot."""
    return Fault(name, breaks, "node/batch.py", "Batches.takes", condition, "True", f"{WAY}[{scene}]")


FAULTS = (
    in_the_way(
        "plain-with-rights-that-were-taken-away",
        "Rights that were taken away are looked at by the very next command.",
        "session.user in self._accounts.unrestricted",
        "rights taken away",
    ),
    in_the_way(
        "plain-in-a-transaction",
        "A transaction queues plain commands, too.",
        "session.queue is None",
        "a transaction",
    ),
    in_the_way(
        "plain-replies-to-who-wants-none",
        "CLIENT REPLY OFF silences plain commands, too.",
        "session.reply_mode == 'on'",
        "replies not wanted",
    ),
    in_the_way(
        "plain-for-a-subscriber",
        "A RESP2 subscriber's other commands are refused.",
        "not session.channels",
        "subscribed",
    ),
    in_the_way(
        "plain-while-paused",
        "A pause holds plain commands, too.",
        "self._pause.ends is None",
        "paused for all",
    ),
    in_the_way(
        "plain-on-a-full-disk",
        "A full disk refuses plain writes, too.",
        "self._journal.outage is None",
        "a full disk",
    ),
    in_the_way(
        "plain-without-events",
        "A plain write makes keyspace events.",
        "not self._config.events",
        "events",
    ),
    in_the_way(
        "plain-breaks-no-watch",
        "A plain write breaks the watch of its key.",
        "not self._watched",
        "watched by another",
    ),
    Fault(
        "plain-run-not-logged",
        "What plain commands change is in the log.",
        "node/batch.py",
        "Batches.run",
        "self._journal.append_run(run.record, soft=run.soft)",
        "pass",
        KILLS,
        ("AssertionError", "ResponseError"),
    ),
    Fault(
        "plain-run-without-a-position",
        "Replies of plain commands wait for their record.",
        "node/journal.py",
        "Journal.append_run",
        "if not soft: ...",
        "",
        RECORD,
    ),
    Fault(
        "plain-run-soft-by-mistake",
        "Only a record that tells of times alone is not waited for.",
        "node/batch.py",
        "PyPlainRunner._ended",
        "soft = 0 < len(self._steps) == self._soft_steps",
        "soft = len(self._steps) > self._soft_steps",
        f"{PLAIN}[XLEN-alone]",
    ),
    Fault(
        "plain-record-of-one-step",
        "The record of a run has all its changes.",
        "node/batch.py",
        "PyPlainRunner._ended",
        "record = codec.pack(self._wall, self._steps) if self._steps and self._records else None",
        "record = codec.pack(self._wall, self._steps[-1:]) if self._steps and self._records else None",
        CRASH,
    ),
    Fault(
        "plain-steps-logged-twice",
        "What one run has logged is not logged by the next.",
        "node/batch.py",
        "PyPlainRunner._ended",
        "if self._steps: ...",
        "",
        f"{BATCH}[0]",
        ("AssertionError", "StorageError"),
    ),
    Fault(
        "plain-counters-of-the-run-before",
        "A run's counters are its own.",
        "node/batch.py",
        "PyPlainRunner._ended",
        "self._dirty = self._hits = self._misses = self._soft_steps = 0",
        "self._dirty = self._soft_steps = 0",
        f"{BATCH}[0]",
    ),
    Fault(
        "plain-calls-not-counted",
        "INFO commandstats counts plain commands.",
        "node/batch.py",
        "PyPlainRunner.run",
        "self._calls[last] += 1",
        "",
        f"{BATCH}[0]",
    ),
    Fault(
        "plain-misses-count-as-hits",
        "INFO's keyspace_misses counts keys that plain commands did not find.",
        "node/batch.py",
        "Batches.run",
        "stats.lookups.misses += run.misses",
        "stats.lookups.hits += run.misses",
        f"{BATCH}[0]",
    ),
    Fault(
        "plain-session-not-counted",
        "CLIENT LIST's tot-cmds counts plain commands.",
        "node/batch.py",
        "Batches.run",
        "session.commands += run.commands",
        "",
        f"{BATCH}[0]",
    ),
    Fault(
        "plain-goes-on-behind-a-wake-up",
        "Who waits for a key is served before the next command changes it.",
        "node/batch.py",
        "PyPlainRunner.run",
        "if self._woken is not None or size >= REPLIES_MAX or len(replies) == RUN_MAX: ...",
        """
        if size >= REPLIES_MAX or len(replies) == RUN_MAX:
            words = None
            break
        """,
        f"{WAY}[a reader waits]",
    ),
    Fault(
        "plain-without-an-end",
        "Others have their turn after so many commands of one client.",
        "node/batch.py",
        "PyPlainRunner.run",
        "if self._woken is not None or size >= REPLIES_MAX or len(replies) == RUN_MAX: ...",
        """
        if self._woken is not None or size >= REPLIES_MAX:
            words = None
            break
        """,
        TURNS,
    ),
    Fault(
        "plain-wakes-nobody",
        "Who waits for a stream is woken by a plain addition.",
        "node/batch.py",
        "PyPlainRunner._xadd",
        "if is_waited_for: ...",
        "",
        f"{WAY}[a consumer waits]",
    ),
    Fault(
        "plain-wakes-those-of-another-database",
        "A key is waited for in one database.",
        "node/batch.py",
        "PyPlainRunner._xadd",
        "is_waited_for = (db, key) in self._waiting",
        "is_waited_for = (0, key) in self._waiting",
        f"{WAY}[waited for in another database]",
    ),
    Fault(
        "plain-set-keeps-the-time-to-die",
        "SET ends the time a key had to live.",
        "node/batch.py",
        "PyPlainRunner._set",
        "(db.expires and key in db.expires) or (db.index, key) in self._waiting",
        "(db.index, key) in self._waiting",
        f"{WAY}[a key that dies]",
    ),
    Fault(
        "plain-reads-what-is-dead",
        "A stream whose time has passed is not there.",
        "node/batch.py",
        "PyPlainRunner._stream",
        "return value if type(value) is Stream and key not in db.expires else None",
        "return value if type(value) is Stream else None",
        f"{WAY}[dead and not yet deleted]",
    ),
    Fault(
        "plain-acknowledges-twice",
        "XACK counts an id that is given twice once.",
        "node/batch.py",
        "PyPlainRunner._xack",
        "there = list(dict.fromkeys([entry for entry in wanted if entry is not None and entry in pending]))",
        "there = list([entry for entry in wanted if entry is not None and entry in pending])",
        f"{WAY}[acknowledged twice]",
    ),
    Fault(
        "plain-time-of-the-first-run",
        "Each run has the time at which it is run.",
        "node/batch.py",
        "PyPlainRunner.run",
        "self._db, self._wall, self._resp = db, wall, resp",
        "self._db, self._wall, self._resp = db, self._wall or wall, resp",
        TIME,
    ),
    Fault(
        "waits-that-are-over-stay",
        "Where nobody waits any more there is no line.",
        "engine/waiting.py",
        "WaitingLines.leave",
        "if not line: ...",
        "",
        AGAIN,
    ),
    Fault(
        "watches-that-are-over-stay",
        "Where nobody watches any more nothing stands in the way.",
        "commands/context/watches.py",
        "Watches.drop",
        "if not watchers: ...",
        "",
        AGAIN,
    ),
    Fault(
        "half-a-command-is-taken",
        "A command is taken when all of it is here.",
        "protocol/split.py",
        "Splitter.next",
        "if end >= len(tokens): ...",
        "if end > len(tokens): return self._wider()",
        f"{CHUNKS}::test_a_splitter_cuts_no_more_than_is_asked_of_it",
    ),
    Fault(
        "written-lengths-are-not-compared",
        "A word with a line's end in it is one word.",
        "protocol/split.py",
        "Splitter.next",
        "if tokens[at + 1 : end : 2] != _written_lengths(words): ...",
        "",
        f"{CHUNKS}::test_commands_are_the_same_however_they_wait",
        ("AssertionError", "ProtocolError"),
    ),
    Fault(
        "splitter-loses-its-place",
        "The next window begins where the last command ended.",
        "protocol/split.py",
        "Splitter._wider",
        "at = self.at",
        "at = min(self._end, len(self.data))",
        f"{CHUNKS}::test_a_splitter_cuts_no_more_than_is_asked_of_it",
    ),
    Fault(
        "what-comes-meanwhile-goes-the-slow-way",
        "Very many commands sent together stay on the fast way.",
        "protocol/reader.py",
        "CommandReader._leave_chunk",
        "if used and self.trusted and len(self._buffer) > size - used: ...",
        "",
        f"{CHUNKS}::test_many_commands_stay_on_the_fast_way",
    ),
    Fault(
        "chunk-read-twice",
        "What was taken of a copied chunk leaves the buffer.",
        "protocol/reader.py",
        "CommandReader._leave_chunk",
        "del self._buffer[:used]",
        "del self._buffer[: used // 2]",
        f"{CHUNKS}::test_many_commands_stay_on_the_fast_way",
        ("AssertionError", "ProtocolError"),
    ),
    Fault(
        "what-waits-is-counted-twice",
        "The bound of what waits counts a byte once, wherever it is kept.",
        "protocol/reader.py",
        "CommandReader.buffered",
        "ahead = -self.at if self._is_copy else len(self.chunk) - self.at",
        "ahead = len(self.chunk) - self.at",
        f"{CHUNKS}::test_what_waits_is_counted_once",
    ),
    Fault(
        "fast-without-trust",
        "Who is trusted no more has the smaller limits, which the slow way knows.",
        "protocol/reader.py",
        "CommandReader._next_of_chunk",
        "words = splitter.next() if self.trusted else None",
        "words = splitter.next()",
        f"{CHUNKS}::test_trust_that_ends_is_seen_by_the_next_command",
    ),
    Fault(
        "small-replies-unwatched",
        "Who leaves many small replies untaken is cut.",
        "server/connection.py",
        "Connection._run_directly",
        "if self._full: self.check_output()",
        "",
        "tests/server/sessions/test_limits.py::test_output_hard_limit_of_small_replies",
    ),
    Fault(
        "woken-by-a-plain-command-too-late",
        "A plain addition serves who waited for it at once.",
        "server/connection.py",
        "Connection._take",
        "server.node.serve(self.session.db, run.woken, now)",
        "pass",
        "tests/server/sessions/test_sessions.py::test_a_reader_is_woken_by_the_first_of_what_comes_together",
        ("AssertionError", "TimeoutError"),
    ),
)
