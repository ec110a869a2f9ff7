"""Limits of the whole fleet: a rate of runs, or a number of simultaneous runs, for a handler or for each key. Pure."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from millstream.client.limits.rate import MOST, Rate, checked_rate, is_name
from millstream.errors import ConfigError, require
from millstream.worker.model.known_options import known_options


@known_options
@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that holds for all workers together; ``@app.subscriber(limit=)`` takes one, or a list.

    Attributes:
        rate: largest number of runs in a period, such as ``"100/s"``, ``"30/m"``, ``"500/h"`` or ``"1000/d"``.
        burst: largest number of runs at once after a pause; None takes the runs of a tenth of a second, at least one.
        running: largest number of runs at the same time.
        key: a field's name, or a function of the message; the limit then holds for each value. The value None is not
            limited. Without a key, the limit holds for the handler.
        name: name of the limit; None takes the handler's name. Handlers that name the same limit share it.

    Raises:
        ConfigError: an argument is invalid; the text shows what to write.
    """

    rate: str | None = None
    burst: int | None = None
    running: int | None = None
    key: str | Callable[[Any], Hashable] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.rate is None and self.running is None:
            raise ConfigError('Limit() is invalid: it limits nothing. Write Limit("100/s") or Limit(running=3).')
        if self.rate is not None:
            checked_rate(f"Limit(rate={self.rate!r})", self.rate)
        for option, value in (("burst", self.burst), ("running", self.running)):
            fine = value is None or (type(value) is int and 1 <= value <= MOST)
            require("Limit", option, value, fine, f"a whole number of 1 to {MOST}. Write {option}=20")
        if self.burst is not None and self.rate is None:
            raise ConfigError('Limit(burst=) is invalid without a rate. Write Limit("100/s", burst=20).')
        if self.name is not None and not is_name(self.name):
            raise ConfigError(
                f"Limit(name={self.name!r}) is invalid: it is a text of 1 to 100 characters without : {{ and }}."
            )

    def paced(self, override: Rate | None = None) -> tuple[Rate | None, int]:
        """Return the rate and the maximum number of permits at once; ``override`` is a rate set at run time."""
        if self.rate is None:
            return None, 0
        rate = override or checked_rate(f"Limit(rate={self.rate!r})", self.rate)
        return rate, self.burst or rate.chunk
