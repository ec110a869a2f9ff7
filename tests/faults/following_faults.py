"""Faults of a replica: ways to hold other data than the primary, and to go on with them."""

from faults.planting import Fault

OBEYING = "tests/replication/test_obeying.py"

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
)
