"""Faults of a replica: ways to hold other data than the primary, and to go on with them."""

from faults.planting import Fault

OBEYING = "tests/replication/test_obeying.py"
RACES = "tests/replication/test_role_races.py"
TAIL = "tests/replication/test_tail.py"

FAULTS = (
    Fault(
        "delivery-clamped-to-our-clock",
        "A replica has the primary's delivery times, whatever its own clock says.",
        "commands/streams/pending.py",
        "_parse_claim",
        "if options.time < 0 or (options.time > now and not obeys): ...",
        "if options.time < 0 or options.time > now: ...",
        f"{OBEYING}::test_words_that_only_a_primary_may_say",
    ),
    Fault(
        "duplicate-added-by-a-replica",
        "A message that the primary found to be known adds nothing on its replicas.",
        "commands/streams/write.py",
        "xadd",
        "if is_repetition: ...",
        "",
        f"{OBEYING}::test_a_duplicate_adds_nothing",
    ),
    Fault(
        "expired-before-the-primary-says-so",
        "A replica deletes no key by itself.",
        "commands/context/context.py",
        "Context._delete_expired",
        "if host.outage is not None or host.is_paused or host.following.is_replica: ...",
        "if host.outage is not None or host.is_paused: ...",
        f"{OBEYING}::test_no_key_is_over_before_the_primary_says_so",
    ),
    Fault(
        "gone-on-though-data-differ",
        "A replica on which a command of its primary has failed goes on with a copy only.",
        "node/following/obeying.py",
        "Obedience._count_divergence",
        "self._following.forget_history()",
        "pass",
        f"{OBEYING}::test_what_fails_here_asks_for_a_copy",
    ),
    Fault(
        "copy-taken-over-by-who-leads",
        "Who leads keeps its data, whatever copy was about to take their place.",
        "server/following/taking.py",
        "Taking._adopt",
        "if not (self._is_cancelled or self._end.done()): ...",
        "if not self._is_cancelled:\n    commit()\n    adopt(self._server.clock.now().mono)\n    self._end_with(None)",
        f"{RACES}::test_who_leads_takes_no_copy_over_that_was_about_to_be",
    ),
    Fault(
        "history-given-up-is-forgotten",
        "What a former primary took is kept, also if nobody had followed it for long.",
        "node/following/role.py",
        "Following.taken_up_to",
        "if mine.is_given_up: ...",
        "",
        f"{TAIL}::test_what_was_taken_after_the_history_was_given_up_is_kept_too[uncounted]",
    ),
    Fault(
        "earlier-histories-forgotten",
        "What a former primary took is kept, however often it or the new one was started since.",
        "engine/history.py",
        "ReplicationState.before",
        "return ((self.replid2, self.second, *self.earlier) if self.replid2 else self.earlier)[: 2 * EARLIER_MAX]",
        "return ()",
        f"{TAIL}::test_what_was_taken_alone_is_known_behind_further_starts_of_either[0-1]",
    ),
)
