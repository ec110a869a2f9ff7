"""The policy after a failure: when to try again, and when to stop. Pure: a random number comes in as an argument.

Each delivery of an entry to a consumer counts as a try, by the server's count. It counts both if the handler failed and
if the process was killed before it could report. Crashes that are not charged, and entries given back, do not count.

When a process dies, every entry in it has been counted as delivered, and the cause is unknown. The server's count does
not tell failures, which the handler survived, from crashes. So a :class:`FailureRecord` is kept beside the stream, and
:func:`run_mode` decides from both how to run an entry that is delivered again.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from millstream import times
from millstream.client.dead_letter.tries import FailedTry
from millstream.errors import ConfigError
from millstream.worker.model.answers import Reject, leaves
from millstream.worker.model.known_options import known_options

Backoff = Literal["exponential", "linear", "constant"]


@known_options
@dataclass(frozen=True, slots=True)
class Retry:
    """The number of tries of a failing entry, and the delays between them.

    Attributes:
        max_deliveries: the delivery after which a failing entry is dead; 0 means no limit.
        backoff: growth of the delay with each failure.
        base: delay before the first retry, in seconds or as a text such as ``"10m"``.
        max_delay: longest delay, in seconds or as a text.
        jitter: True picks each delay at random between half of it and all of it.
        on: the policy for errors of a class: another ``Retry``, ``"reject"`` for dead at once, or ``"ack"`` for done.
            The first class that the error is an instance of counts. All policies count the same deliveries. The
            errors of a group, such as a task group's, count one by one: if they differ, the entry is tried again.
    """

    max_deliveries: int = 5
    backoff: Backoff = "exponential"
    base: float | str = 0.5
    max_delay: float | str = 300.0
    jitter: bool = True
    on: "Mapping[type[BaseException], Retry | Literal['reject', 'ack']]" = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        most: object = self.max_deliveries
        if not isinstance(most, int) or isinstance(most, bool) or most < 0:
            raise ConfigError(f"Retry(max_deliveries={most!r}) is invalid: it is a whole number, 0 for no limit.")
        for name in ("base", "max_delay"):
            object.__setattr__(self, name, times.configured(f"Retry({name}=", getattr(self, name), "s"))
        if self.backoff not in get_args(Backoff):
            raise ConfigError(f"Retry(backoff={self.backoff!r}) is invalid. Write {', '.join(get_args(Backoff))}.")
        object.__setattr__(self, "on", _checked(self.on))

    @property
    def limit(self) -> int:
        """The largest number of deliveries that any of the policies allows; 0 means no limit."""
        limits = [self.max_deliveries, *(one.max_deliveries for one in self.on.values() if isinstance(one, Retry))]
        return max(limits) if all(limits) else 0

    def policy(self, error: BaseException) -> "Retry | Literal['reject', 'ack']":
        """Return the policy for an error; for a group that of its errors, or the ``Retry`` with the most deliveries."""
        if isinstance(error, BaseExceptionGroup) and not any(issubclass(kind, BaseExceptionGroup) for kind in self.on):
            try:
                found = [self._single(one) for one in leaves(error)]
            except BaseException:  # noqa: BLE001 - the group's class is the user's
                return self._single(error)
            again = [one for one in found if isinstance(one, Retry)] or [self]
            mildest = max(again, key=lambda one: one.max_deliveries or math.inf)
            return found[0] if all(one == found[0] for one in found) else mildest
        return self._single(error)

    def _single(self, error: BaseException) -> "Retry | Literal['reject', 'ack']":
        chosen = next((policy for kind, policy in self.on.items() if isinstance(error, kind)), self)
        return "reject" if isinstance(error, Reject) else chosen

    def delay(self, deliveries: int, chance: float) -> float:
        """Return the delay in seconds after the ``deliveries``-th delivery failed; ``chance`` is in [0, 1)."""
        failures, base = max(deliveries, 1), float(self.base)
        if self.backoff == "exponential":
            # 2**64 seconds exceeds any limit; the bound keeps a huge counter from overflowing the float
            whole = base * 2.0 ** min(failures - 1, 64)
        elif self.backoff == "linear":
            whole = base * failures
        else:
            whole = base
        whole = min(whole, float(self.max_delay))
        return whole * (0.5 + 0.5 * chance) if self.jitter else whole

    def exhausted(self, deliveries: int) -> bool:
        """True when a failure of this delivery is the last one allowed."""
        return bool(self.max_deliveries) and deliveries >= self.max_deliveries


def _checked(on: object) -> "dict[type[BaseException], Retry | Literal['reject', 'ack']]":
    if not isinstance(on, Mapping):
        raise ConfigError(f'Retry(on={on!r}) is invalid: it must be a mapping. Write on={{ValueError: "reject"}}.')
    for kind, policy in on.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ConfigError(f"Retry(on=) is invalid: {kind!r} is not a class of exceptions.")
        nested = isinstance(policy, Retry) and not policy.on
        if not nested and not (isinstance(policy, str) and policy in ("reject", "ack")):
            raise ConfigError(
                f'Retry(on=) is invalid for {kind.__name__}: {policy!r} is not "reject", "ack" or a Retry without on=.'
            )
    return dict(on)


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Facts about an entry that the server's delivery count does not show."""

    failures: int = 0  # Deliveries that the handler ended: it raised, released, or returned without an outcome
    uncharged: bool = False  # True after a crash was not charged, which allows one more delivery than the limit
    # Not 0 after it ran without other entries, or after its process was killed because its handler blocked the event
    # loop: a later crash is then its own. The value is the number of the spare process, or 1 for other processes.
    alone: int = 0
    tries: tuple[FailedTry, ...] = ()  # The last of these failures


NO_RECORD = FailureRecord()

_DOUBTFUL = 10
"""Extra deliveries beyond the limit for an entry that has no crash of its own on record.

Its workers may have died for other reasons.
"""


class RunMode(Enum):
    """The way to run an entry that was delivered before."""

    NORMAL = "normal"  #: like any other: the handler ended every earlier delivery
    TOGETHER = "together"  #: with other entries, once; before that it is stored that its first crash is not charged
    ALONE = "alone"  #: without other entries at the same time
    DEAD = "dead"  #: not at all: its attempts are used up, and it crashed alone or failed


def tries(deliveries: int, record: FailureRecord | None) -> int:
    """Return the number of deliveries that count, including this one.

    Redis counts in unsigned 64 bits but shows a signed number. So it shows negative numbers for the largest counts,
    which XCLAIM's RETRYCOUNT and XNACK's FATAL may set.
    """
    if deliveries < 0:
        deliveries += 2**64
    return deliveries - (record is not None and record.uncharged)


def run_mode(
    retry: Retry,
    deliveries: int,
    record: FailureRecord | None,
    *,
    kept: bool = True,
    ended_spare: Callable[[int], bool] = lambda _: False,
) -> RunMode:
    """Return the way to run an entry that was claimed.

    After a crash, most entries in the process were only neighbours of the entry that killed it. So the first crash of
    an entry is not charged, and the entry runs as usual. The second crash is charged. From then on the entry runs
    alone, where crashes of other entries cannot affect it, so a poison message uses up its tries alone. If a crash is
    certainly the entry's own, it is charged and the entry runs alone from the first crash on. An entry is dead,
    whatever its limit, if it ended a worker and then, alone, a spare process. ``ended_spare`` returns True for the
    number of a spare process that was not killed from outside.
    """
    known = record or NO_RECORD
    counted = tries(deliveries, record)
    crashes = counted - 1 - known.failures
    limit = retry.limit
    if limit and crashes > 0 and known.alone and ended_spare(known.alone):
        return RunMode.DEAD
    if limit and counted > limit:
        # An entry that fails is dead after its last attempt. This one crashed, or its worker crashed before the letter
        # was written, or workers were killed between claim and run. A crash of its own is recorded.
        doubtful = crashes > 0 and not known.alone and counted <= limit + (_DOUBTFUL if record is not None else 1)
        return RunMode.ALONE if doubtful else RunMode.DEAD
    if crashes <= 0 or not kept:
        return RunMode.NORMAL
    return RunMode.ALONE if known.uncharged or known.alone else RunMode.TOGETHER


class Failure(Enum):
    """The reason why a run failed."""

    ERROR = "error"  #: the handler raised
    NACK = "nack"  #: the handler requested another delivery
    REJECT = "reject"  #: the handler rejected the entry
    INVALID = "invalid"  #: the entry does not fit the handler's annotations, so another run cannot help
    OVERDUE = "overdue"  #: it was delivered too often without an outcome: it probably kills its process


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a failed entry."""

    dead: bool  # Move it to the dead-letter stream
    delay: float = 0.0  # Seconds before it may be delivered again, 0 for at once; unused if dead


def decide(retry: Retry, failure: Failure, counted: int, chance: float, delay: float | None = None) -> Decision:
    """Decide about a failed delivery: dead, or again after a delay."""
    if failure in (Failure.REJECT, Failure.INVALID, Failure.OVERDUE) or retry.exhausted(counted):
        return Decision(dead=True)
    if delay is not None:
        return Decision(dead=False, delay=delay)
    if failure is Failure.NACK:
        return Decision(dead=False)
    return Decision(dead=False, delay=retry.delay(counted, chance))


def share(room: int, turn: bool, *, alone: bool = False) -> int:
    """Return how many of ``room`` free places claims may take: half, or a single place every other time.

    New entries can always use the other places, so entries that come back repeatedly never starve them.
    """
    if room <= 1:
        return int(turn and room == 1)
    return room - max(room // 8, 1) if alone else room // 2


def resize(target: int, lowest: int, highest: int, *, waited_ms: float) -> int:
    """Return the next size of the read-ahead buffer, given how long the last batch waited to be started.

    Fast handlers get large reads. Slow handlers keep few entries from other workers.
    """
    if waited_ms < 50:
        target *= 2
    elif waited_ms > 500:
        target //= 2
    return max(lowest, min(target, highest))
