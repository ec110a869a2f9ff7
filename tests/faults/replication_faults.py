"""Faults of a primary: ways to let a replica hold other data than its primary, or to say that it holds the same."""

from faults.planting import Fault

PARTS = "tests/replication/test_parts.py"
WORDS = "tests/replication/test_words.py::test_what_replicas_are_told_makes_the_same_data"

FAULTS = (
    Fault(
        "sent-before-kept",
        "A replica is sent nothing that a power cut could still take back.",
        "replication/backlog.py",
        "Backlog.read",
        "stop = min(begin + most, self.sendable - self._starts[at])",
        "stop = min(begin + most, self.end - self._starts[at])",
        f"{PARTS}::test_bytes_go_out_once_their_position_is_reached",
    ),
    Fault(
        "record-without-its-bytes",
        "A record says how many bytes tell replicas of it.",
        "node/log/feeding.py",
        "Feed.count",
        'step = ("off", self._db, self._unlogged)',
        'step = ("off", self._db, 0)',
        f"{PARTS}::test_a_record_counts_the_bytes_that_tell_of_it",
    ),
    Fault(
        "message-sent-before-it-is-counted",
        "What changes no data is in the log before replicas are sent it.",
        "node/journal.py",
        "Journal._fed_alone",
        "if self.feed.is_prompt or self.disk_outage is not None: ...",
        "self._fed()",
        "tests/replication/campaigns/test_power.py::test_a_message_is_counted_before_it_is_sent",
    ),
    Fault(
        "selected-database-forgotten",
        "The database that is selected belongs to the place in the stream.",
        "engine/keyspace.py",
        "_offset",
        "space.history.db = db",
        "pass",
        f"{PARTS}::test_a_record_counts_the_bytes_that_tell_of_it",
    ),
    Fault(
        "old-history-too-far",
        "A replica with more than its primary kept gets a copy.",
        "node/log/feeding.py",
        "gone_on",
        'return ("hist", NO_DATABASE, new_replid(), past.offset, past.replid, past.offset + 1)',
        'return ("hist", NO_DATABASE, new_replid(), past.offset, past.replid, past.offset + 2)',
        f"{PARTS}::test_a_start_takes_another_name_and_knows_the_old_one",
    ),
    Fault(
        "history-of-who-tells-nobody",
        "Whoever writes without telling replicas ends the history.",
        "node/node.py",
        "Node.recover",
        "if not tells_replicas: ...",
        "",
        f"{PARTS}::test_who_tells_no_replicas_ends_the_history",
    ),
    Fault(
        "copies-on-their-way-count",
        "WAIT counts replicas that follow.",
        "replication/followers.py",
        "Followers.count",
        "return sum(((each.durable if durable else each.acked) >= offset for each in self.online))",
        "return sum(((each.durable if durable else each.acked) >= offset for each in self))",
        f"{PARTS}::test_replicas_that_are_not_there_yet_do_not_count",
    ),
    Fault(
        "delivery-without-its-entries",
        "What was delivered is pending on a replica, too.",
        "replication/words.py",
        "_gread",
        "if not noack: ...",
        "",
        f"{WORDS}[1]",
    ),
    Fault(
        "failover-before-all-is-there",
        "FAILOVER loses no write that was confirmed.",
        "node/following/failover.py",
        "Failover._look",
        "chosen = next((each for each in self._candidates() if each.acked >= self._primary.offset), None)",
        "chosen = next((each for each in self._candidates()), None)",
        "tests/replication/test_failover.py::test_a_replica_that_never_holds_all",
    ),
    Fault(
        "released-entries-compared-by-holder",
        "A released entry equals one that a consumer without a name holds.",
        "migrate/compare_keys.py",
        "_Database._stream",
        "supports = TargetFeatures(release=RELEASED_HOLDER not in names)",
        "supports = TargetFeatures()",
        "tests/cli/test_replicas.py::test_equal_servers",
    ),
)
