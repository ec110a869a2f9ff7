"""The times at which a recurring schedule fires: a cron line in a time zone, or an interval. Pure.

A cron line follows Debian's cron on the nights when clocks change, by way of ``cronsim``. A daily time that does not
exist fires once, right after the gap. A time that exists twice fires once. Intervals count from 1970, so that firings
do not drift and a restart does not move them.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from millstream import times
from millstream.errors import ConfigError

CatchUp = Literal["latest", "none", "all"]
Overlap = Literal["queue", "skip"]

MOST = 1_000
"""Most missed firings that are made up for, or searched."""

#: Longest interval, offset, jitter or grace, equal to the limit of :func:`millstream.times.configured`.
LONGEST_MS = 36_600 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Timetable:
    """The firing times of a recurring schedule, and its options.

    Attributes:
        cron: five fields of a cron line; None for an interval.
        every_ms: milliseconds between two firings; None for a cron line.
        offset_ms: milliseconds by which the firings of an interval are moved.
        tz: the time zone of the cron line, a name of the IANA list.
        jitter_ms: most milliseconds that a firing is delayed; the hash of its name and time decides the share.
        catch_up: firings to make up for after a time without a worker: the latest one, none, or all.
        grace_ms: milliseconds that a firing may be late where ``catch_up`` is none.
        overlap: ``"skip"`` drops a firing while an earlier one is not handled.
    """

    cron: str | None = None
    every_ms: int | None = None
    offset_ms: int = 0
    tz: str = "UTC"
    jitter_ms: int = 0
    catch_up: CatchUp = "latest"
    grace_ms: int = 60_000
    overlap: Overlap = "queue"

    def after(self, moment_ms: int) -> Iterator[int]:
        """Yield the firing times after a moment, in milliseconds since 1970, in order."""
        if self.every_ms is not None:
            at = (moment_ms - self.offset_ms) // self.every_ms * self.every_ms + self.offset_ms
            while True:
                at += self.every_ms
                yield at
        start = (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(self._zone)
        for moment in CronSim(self.cron or "", start):
            at = (moment - _EPOCH) // timedelta(milliseconds=1)
            if at > moment_ms:
                yield at

    def shifted(self, name: str, at_ms: int) -> int:
        """Return the time at which a firing is due: its own time plus its share of the jitter."""
        share = zlib.crc32(f"{name}@{at_ms}".encode(errors="surrogateescape")) / 2**32
        return at_ms + int(self.jitter_ms * share)

    def expiry(self, at_ms: int, following_ms: int) -> int | None:
        """Return the milliseconds that a firing may be late before it is dropped; None if it is never dropped."""
        if self.catch_up == "all":
            return None
        return self.grace_ms if self.catch_up == "none" else max(following_ms - at_ms - 1, 1)

    def check(self, what: str) -> None:
        """Refuse an invalid zone, cron line or choice; :func:`timetable` checks the lengths of time."""
        for option, allowed in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
            if (value := getattr(self, option)) not in allowed:
                raise ConfigError(
                    f"{what}: {option}={value!r} is invalid. Write {option}={' or '.join(map(repr, allowed))}."
                )
        try:
            zone = self._zone
        except (ValueError, OSError, TypeError, LookupError):
            example = 'Write tz="Europe/Berlin".'
            raise ConfigError(f"{what}: tz={self.tz!r} is invalid: it is not a time zone. {example}") from None
        if self.every_ms is not None:
            return
        cron: object = self.cron
        example = 'Write five fields, such as "*/5 * * * *".'
        if not isinstance(cron, str) or len(cron.split()) != 5:
            raise ConfigError(f"{what}: {cron!r} is invalid: it is not a cron line. {example}")
        try:
            next(CronSim(cron, datetime(2024, 1, 1, tzinfo=zone)))
        except CronSimError as error:
            raise ConfigError(f"{what}: {cron!r} is invalid: {error}. {example}") from None
        except StopIteration:
            raise ConfigError(f"{what}: {cron!r} is invalid: there is no such day. {example}") from None

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.tz)


def timetable(
    name: str,
    cron: str | None = None,
    *,
    every: float | str | None = None,
    offset: float | str = 0,
    tz: str = "UTC",
    jitter: float | str = 0,
    catch_up: CatchUp = "latest",
    grace: float | str = 60,
    overlap: Overlap = "queue",
) -> Timetable:
    """Return a timetable from a program's arguments, after a check.

    Args:
        name: of the schedule, for errors.
        cron: minute, hour, day of the month, month and day of the week.
        every: seconds, or a text such as ``"6h"``, instead of a cron line.
        offset: seconds, or a text, by which the firings of ``every``, counted from 1970, are moved.
        tz: the time zone of the cron line.
        jitter: seconds, or a text.
        catch_up: ``"latest"``, ``"none"`` or ``"all"``.
        grace: seconds, or a text.
        overlap: ``"queue"`` or ``"skip"``.

    Raises:
        ConfigError: an option is invalid, or the line names no time.
    """
    what = f"schedule {name!r}"
    if (cron is None) == (every is None):
        raise ConfigError(f'{what} is invalid: write either a cron line, such as "0 3 * * *", or every="6h".')
    if every is not None and tz != "UTC":
        raise ConfigError(f"{what}: tz={tz!r} is invalid with every=, which counts from 1970. Write offset= instead.")
    spans = {
        option: round(times.configured(f"{what}: schedule({option}=", value, "s") * 1000)
        for option, value in (("offset", offset), ("jitter", jitter), ("grace", grace))
    }
    if cron is not None and spans["offset"]:
        raise ConfigError(f"{what}: offset={offset!r} is invalid with a cron line. Leave it out, and change the line.")
    every_ms = None if every is None else round(times.configured(f"{what}: schedule(every=", every, "s") * 1000)
    if every_ms is not None and every_ms < 1_000:
        raise ConfigError(f"{what}: every={every!r} is invalid: it must be at least one second. Write every=1.")
    table = Timetable(cron, every_ms, spans["offset"], tz, spans["jitter"], catch_up, spans["grace"], overlap)
    table.check(what)
    return table
