"""What the parts of one subscriber have in common: whose entries they are, and where what becomes of them is stored."""

from dataclasses import dataclass

from millstream.worker.handlers.outcomes import Outcomes
from millstream.worker.handlers.subscription import Subscription
from millstream.worker.settlement.acks import PendingAcks
from millstream.worker.settlement.consumer import Membership
from millstream.worker.settlement.failure_log import FailureLog
from millstream.worker.settlement.leases import Leases


@dataclass(frozen=True, slots=True)
class SubscriberParts:
    """Made once for each subscriber, and handed to whatever reads, runs or hands back its entries.

    Attributes:
        subscription: what is read, how, and with which function.
        member: the consumer, and the entries it has in hand.
        leases: renew those, so that nobody claims them.
        failures: tell failures from crashes; say how to run what was delivered before.
        acks: takes acks and releases, and stores them.
        outcomes: take failures; the retry policy decides what they mean.
    """

    subscription: Subscription
    member: Membership
    leases: Leases
    failures: FailureLog
    acks: PendingAcks
    outcomes: Outcomes
