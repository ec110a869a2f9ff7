"""Server parameters that clients see through CONFIG, with their checks and Redis's error texts."""

from collections.abc import Callable
from dataclasses import dataclass

from millstream.commands.events import canonical
from millstream.errors import CommandError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One CONFIG parameter.

    Attributes:
        name: as clients write it.
        default: value at start.
        parse: text to value; raises ``ValueError`` with Redis's reason.
        mutable: whether CONFIG SET may change it.
    """

    name: str
    default: str
    parse: Callable[[str], object]
    mutable: bool = True


def integer(low: int, high: int) -> Callable[[str], int]:
    """A parser for whole numbers in a range, both ends allowed."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("argument couldn't be parsed into an integer") from None
        if not low <= value <= high:
            raise ValueError(f"argument must be between {low} and {high} inclusive")
        return value

    return parse


_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 10**6, "mb": 1024**2, "g": 10**9, "gb": 1024**3}


def memory(low: int, high: int) -> Callable[[str], int]:
    """A parser for sizes such as ``512mb``, in bytes."""

    def parse(text: str) -> int:
        digits = text.rstrip("bBkKmMgG")
        unit = _UNITS.get(text[len(digits) :].lower())
        if unit is None or not digits.lstrip("-").isdigit():
            raise ValueError("argument must be a memory value")
        value = int(digits) * unit
        if not low <= value <= high:
            raise ValueError(f"argument must be between {low} and {high} inclusive")
        return value

    return parse


def choice(*words: str) -> Callable[[str], str]:
    """A parser for one of a few words."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError("argument(s) must be one of the following: " + ", ".join(words))
        return text.lower()

    return parse


def text(value: str) -> str:
    """Any text."""
    return value


LLONG_MAX = 2**63 - 1

PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("stream-node-max-bytes", "4096", memory(0, LLONG_MAX)),
        Parameter("stream-node-max-entries", "100", integer(0, LLONG_MAX)),
        Parameter("stream-idmp-duration", "100", integer(1, 86400)),
        Parameter("stream-idmp-maxsize", "100", integer(1, 10000)),
        Parameter("notify-keyspace-events", "", canonical),
    )
}


class Config:
    """Present values of the parameters.

    Args:
        given: values that differ from the defaults, by name.
    """

    def __init__(self, given: dict[str, str] | None = None) -> None:
        self.values: dict[str, object] = {}
        for parameter in PARAMETERS.values():
            self.values[parameter.name] = parameter.parse(parameter.default)
        for name, value in (given or {}).items():
            self.values[name] = PARAMETERS[name].parse(value)
        self._cache()

    def _cache(self) -> None:
        self.node_max_bytes = self._int("stream-node-max-bytes")
        self.node_max_entries = self._int("stream-node-max-entries")
        self.idmp_duration = self._int("stream-idmp-duration")
        self.idmp_maxsize = self._int("stream-idmp-maxsize")
        self.events = str(self.values["notify-keyspace-events"])

    def _int(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def set(self, changes: list[tuple[str, str]]) -> None:
        """Change several parameters, all or none.

        Raises:
            CommandError: a name is unknown or a value refused; nothing changed.
        """
        parsed: dict[str, object] = {}
        for name, value in changes:
            parameter = PARAMETERS.get(name.lower())
            if parameter is None:
                raise CommandError(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            if not parameter.mutable:
                raise CommandError(
                    f"ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
                )
            try:
                parsed[parameter.name] = parameter.parse(value)
            except ValueError as reason:
                raise CommandError(
                    f"ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"
                ) from None
        self.values.update(parsed)
        self._cache()
