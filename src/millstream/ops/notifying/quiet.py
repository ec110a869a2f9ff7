"""Quiet hours: a time of each day, in a time zone, at which no notification is sent."""

import re
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from millstream.errors import UsageError

_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A time of each day without notifications; it may pass midnight."""

    begin: int  # Minute of the day at which it begins
    end: int  # Minute of the day at which it ends
    zone: ZoneInfo  # Time zone of both

    def cover(self, at_ms: int) -> bool:
        """Return True if a time lies in the quiet hours, by the clocks of the time zone."""
        local = datetime.fromtimestamp(at_ms / 1000, self.zone)
        minute = local.hour * 60 + local.minute
        if self.begin <= self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


def quiet_hours(text: str, zone: str) -> QuietHours:
    """Parse quiet hours such as ``22:00-07:00``, and the name of their time zone."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--quiet {text!r} is invalid: give two times of the day, such as 22:00-07:00.")
    try:
        place = ZoneInfo(zone)
    except (ValueError, OSError, LookupError):
        raise UsageError(
            f"--time-zone {zone!r} is invalid: this machine has no such time zone. Give a name such as Europe/Vienna."
        ) from None
    hours = [int(part) for part in found.groups()]
    return QuietHours(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3], place)
