"""The common state of one subscriber's parts: the owner of its entries, and the store for their outcomes."""

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
    """Made once for each subscriber."""

    subscription: Subscription  # The stream, the way to read it, and the function
    member: Membership  # The consumer, and the entries it has in hand
    leases: Leases  # Renew those, so that nobody claims them
    failures: FailureLog  # The log that tells failures from crashes; says how to run what was delivered before
    delays: EntryDelays  # When delayed entries are due
    acks: PendingAcks  # Take what becomes of entries, and store it
    cancels: Cancels  # Find what was cancelled
    outcomes: Outcomes  # Take failed runs; the retry policy decides what they mean
    apart: Apart  # The tasks in which handlers run


class SubscriberPart:
    """A part that reads, runs or hands back the entries of one subscriber."""

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
