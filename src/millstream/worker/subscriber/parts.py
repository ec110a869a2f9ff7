"""State shared by one subscriber's parts: the owner of its entries, and the parts that store their outcomes."""

from typing import NamedTuple

from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.cancels import Cancels
from millstream.worker.settlement.consumer import Membership
from millstream.worker.settlement.delays import EntryDelays
from millstream.worker.settlement.failure_log import FailureLog
from millstream.worker.settlement.leases import Leases
from millstream.worker.subscriber.apart import Apart


class Common(NamedTuple):
    """The shared state, made once for each subscriber."""

    subscription: Subscription  # Stream, way to read it, and handler
    member: Membership  # This consumer and the entries that it holds
    leases: Leases  # Renews held entries, so that no other consumer claims them
    failures: FailureLog  # Distinguishes failures from crashes, and determines how to run an entry again
    delays: EntryDelays  # Due times of delayed entries
    acks: PendingAcks  # Stores the outcomes of entries
    cancels: Cancels  # Finds cancelled entries
    outcomes: Outcomes  # Settles failed runs according to the retry policy
    apart: Apart  # Runs handlers in separate tasks


class SubscriberPart:
    """Base class of the parts that read, run or release the entries of one subscriber."""

    def __init__(self, common: Common) -> None:
        self._subscription = common.subscription
        self._member = common.member
        self._leases = common.leases
        self._failures = common.failures
        self._delays = common.delays
        self._acks = common.acks
        self._cancels = common.cancels
        self._outcomes = common.outcomes
        self._apart = common.apart
