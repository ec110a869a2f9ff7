"""The policy after a failure: when to try again, and when to stop. Pure: chance comes in as a number.

Every delivery of an entry to a consumer counts as a try, by the server's count. It counts whether the handler failed or
the process was killed before it could report. Uncharged crashes are subtracted. Handing back is not charged.

When a process dies, a delivery has been counted for everything it had in hand, and nobody can tell which entry was the
cause. The server's count does not tell failures, which the handler survived, from crashes. So a :class:`FailureRecord`
is kept beside the stream, and :func:`run_mode` says from both how an entry that comes back is run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from millstream import times
from millstream.errors import ConfigError
from millstream.worker.model.known_options import known_options

Backoff = Literal["exponential", "linear", "constant"]


@known_options
@dataclass(frozen=True, slots=True)
class Retry:
    """The number and the delays of a failed entry's tries.

    Attributes:
        max_deliveries: the delivery after which a failing entry is dead; 0 means no limit.
        backoff: growth of the delay with each failure.
        base: seconds, or a text such as ``"10m"``, before the first retry.
        max_delay: seconds, or a text, that no delay exceeds.
        jitter: True spreads each delay evenly between its half and its whole.
        on: the policy for errors of a class: another ``Retry``, ``"reject"`` for dead at once, or ``"ack"`` for done.
            The first class that the error is an instance of counts. All policies count the same deliveries.
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
        """The most deliveries that any of the policies allows; 0 means no limit."""
        limits = [self.max_deliveries, *(one.max_deliveries for one in self.on.values() if isinstance(one, Retry))]
        return max(limits) if all(limits) else 0

    def policy(self, error: BaseException) -> "Retry | Literal['reject', 'ack']":
        """The policy for an error."""
        return next((policy for kind, policy in self.on.items() if isinstance(error, kind)), self)

    def delay(self, deliveries: int, chance: float) -> float:
        """Seconds to wait after the ``deliveries``-th delivery failed; ``chance`` is in [0, 1)."""
        failures, base = max(deliveries, 1), float(self.base)
        if self.backoff == "exponential":
            # 2**64 seconds is beyond any limit; the bound keeps a huge counter from overflowing the float
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
    """Facts about an entry besides the server's count of its deliveries."""

    failures: int = 0  # Deliveries that ended with a word of the handler: it raised, gave back, or returned and left it
    uncharged: bool = False  # True once a crash was not charged, so that one delivery more than the limit is allowed
    # Not 0 once it began to run with nothing beside it, or its process was killed since its handler blocked the event
    # loop: a crash after that is its own. In a spare process it is the number of that one, else 1.
    alone: int = 0


NO_RECORD = FailureRecord()

_DOUBTFUL = 10
"""Deliveries beyond the limit of an entry without a crash of its own on record: workers may have died before."""


class RunMode(Enum):
    """The way to run an entry that was delivered before."""

    NORMAL = "normal"  #: as any other: every earlier delivery ended with a word of the handler
    TOGETHER = "together"  #: with others, once: its first crash is not charged, and that is stored before it starts
    ALONE = "alone"  #: with nothing beside it
    DEAD = "dead"  #: not at all: its tries are used up, and it crashed alone or failed


def tries(deliveries: int, record: FailureRecord | None) -> int:
    """Deliveries that count, the present one included.

    Redis counts in 64 bits without a sign and shows them with one: beyond the highest count (which XCLAIM's RETRYCOUNT
    and XNACK's FATAL may set) it shows negative ones.
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
    """The way to run an entry that was claimed.

    Most entries in hand at a crash were only neighbours of the one that kills its process. Such an entry is not charged
    the first time, and runs as any other. After a second crash it is charged, and runs alone from then on, where the
    crash of another entry cannot meet it. The poison message uses up its tries alone. One whose crash is surely its own
    is charged and runs alone from the first crash on. One that ended a worker, and then alone a spare process, is dead
    whatever its limit. ``ended_spare`` is true for the number of a spare that no kill from outside ended.
    """
    known = record or NO_RECORD
    counted = tries(deliveries, record)
    crashes = counted - 1 - known.failures
    limit = retry.limit
    if limit and crashes > 0 and known.alone and ended_spare(known.alone):
        return RunMode.DEAD
    if limit and counted > limit:
        # an entry that fails is dead at its last try; this one crashed, or its worker did before its letter was
        # written, or workers were killed between their claim and its run. A crash of its own is on record.
        doubtful = crashes > 0 and not known.alone and counted <= limit + (_DOUBTFUL if record is not None else 1)
        return RunMode.ALONE if doubtful else RunMode.DEAD
    if crashes <= 0 or not kept:
        return RunMode.NORMAL
    return RunMode.ALONE if known.uncharged or known.alone else RunMode.TOGETHER


class Failure(Enum):
    """Why a run did not end well."""

    ERROR = "error"  #: the handler raised
    NACK = "nack"  #: the handler asked for another delivery
    REJECT = "reject"  #: the handler rejected the entry
    INVALID = "invalid"  #: the entry does not fit the handler's annotations, so that running it again cannot help
    OVERDUE = "overdue"  #: delivered too often without any outcome: it probably kills its process


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a failed entry."""

    dead: bool  # Set it aside in the dead-letter stream
    delay: float = 0.0  # Seconds until it may be delivered again, 0 for at once; meaningless when dead


def decide(retry: Retry, failure: Failure, counted: int, chance: float, delay: float | None = None) -> Decision:
    """Decide about one failed delivery."""
    if failure in (Failure.REJECT, Failure.INVALID, Failure.OVERDUE) or retry.exhausted(counted):
        return Decision(dead=True)
    if delay is not None:
        return Decision(dead=False, delay=delay)
    if failure is Failure.NACK:
        return Decision(dead=False)
    return Decision(dead=False, delay=retry.delay(counted, chance))


def share(room: int, turn: bool, *, alone: bool = False) -> int:
    """The number of ``room`` free places that claims may take: half, or every other time the only one.

    New entries can always use the rest, so entries that keep coming back never starve them.
    """
    if room <= 1:
        return int(turn and room == 1)
    return room - max(room // 8, 1) if alone else room // 2


def resize(target: int, lowest: int, highest: int, *, waited_ms: float) -> int:
    """The next size of the read-ahead buffer, from how long the last batch took to be started.

    Quick handlers get large reads; slow ones hold back little that another worker could run.
    """
    if waited_ms < 50:
        target *= 2
    elif waited_ms > 500:
        target //= 2
    return max(lowest, min(target, highest))
