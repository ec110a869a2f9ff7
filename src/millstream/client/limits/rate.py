"""Rates, and the keys of limits on the server. Pure.

::

    millstream:{limit:<name>:<key>}:rate      string: the time until which permits are taken, microseconds since 1970
    millstream:{limit:<name>:<key>}:running   sorted set: a slot for each run -> when it is free again, in milliseconds
    millstream:limits                         hash: name of a limit -> its rate, such as 30/m, in place of the code's

The first two keys expire by themselves. They have a slot of their own in a cluster, so limits spread over its nodes.
``<key>`` is empty for a limit of the handler; a long key is replaced by its hash.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from millstream.errors import ConfigError

RATES = "millstream:limits"
"""Key of the rates that were set at run time."""

LEASE_MS = 30_000
"""Milliseconds after which the slot of a run that is not renewed is free."""

MOST = 1_000_000
"""Most permits of a rate, and most slots."""

_KEY_BYTES = 200
_NAME = re.compile(r"[^:{}\x00-\x1f\x7f\ud800-\udfff]{1,100}")
_RATE = re.compile(r"([0-9]{1,7})/([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Words: TypeAlias = Sequence[str | int | float]


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of permits per unit of time."""

    permits: int
    unit: str

    @property
    def each_us(self) -> float:
        """Microseconds between two permits."""
        return _UNITS[self.unit] * 1_000_000 / self.permits

    @property
    def chunk(self) -> int:
        """Number of permits in a tenth of a second, at least one."""
        return max(int(100_000 / self.each_us), 1)

    def __str__(self) -> str:
        return f"{self.permits}/{self.unit}"


def parse_rate(text: object) -> Rate | None:
    """Return the rate in a text such as ``100/s``; None if it is not a rate."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None or not 1 <= int(found[1]) <= MOST:
        return None
    return Rate(int(found[1]), found[2])


def checked_rate(where: str, text: object) -> Rate:
    """Return the rate in a text, or raise an error that shows how to write one."""
    rate = parse_rate(text)
    if rate is None:
        raise ConfigError(
            f"{where} is invalid: a rate is a number of 1 to {MOST} for each s, m, h or d. Write it such as 100/s."
        )
    return rate


def is_name(text: object) -> bool:
    """Return True if the text is valid as the name of a limit."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def keys(name: str, key: bytes = b"") -> tuple[str, str]:
    """Return the keys of the rate and of the slots of one limit."""
    if len(key) > _KEY_BYTES:
        key = sha256(key).hexdigest().encode()
    tag = f"millstream:{{limit:{name}:{key.decode(errors='surrogateescape')}}}"
    return f"{tag}:rate", f"{tag}:running"
