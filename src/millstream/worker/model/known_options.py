"""A class decorator that refuses unknown options with an error that names the right option. PURE."""

import difflib
import functools
import inspect
from collections.abc import Sequence
from typing import Any, TypeVar

from millstream.errors import ConfigError

_T = TypeVar("_T")

#: Options of ``@app.subscriber``, which are seldom meant for its stream.
_OF_SUBSCRIBER = frozenset(
    "ack batch concurrency dead hard_limit hold key limit middlewares on_ack read retry".split()  # noqa: SIM905 - shorter than quoted words
)


def known_options(cls: type[_T]) -> type[_T]:
    """Refuse unknown options of a dataclass with an error that says what to write."""
    known, init = inspect.signature(cls).parameters, cls.__init__

    @functools.wraps(init)
    def checked_init(self: _T, *given: Any, **options: Any) -> None:
        unknown = [name for name in options if name not in known]
        if unknown:
            first = [repr(one) for one in given[:1]] or [
                f"{name}={options[name]!r}" for name in options if name in known
            ]
            raise ConfigError(_refusal(cls.__name__, first[:1], unknown, list(known)))
        init(self, *given, **options)

    cls.__init__ = checked_init  # type: ignore[assignment] # of the same signature, by wraps
    return cls


def _refusal(made: str, first: Sequence[str], unknown: Sequence[str], known: Sequence[str]) -> str:
    named = [f"{name}=..." for name in unknown]
    where = f"{made}({', '.join([*first, *named])}) is invalid"
    of_subscriber = [name for name in unknown if name in _OF_SUBSCRIBER]
    if of_subscriber:
        there = ", ".join([f"{made}({', '.join(first)})", *(f"{name}=..." for name in of_subscriber)])
        example = f" Write @app.subscriber({there})." if made == "StreamSub" else ""
        return f"{where}: {', '.join(of_subscriber)} belongs to the subscriber.{example}"
    near = difflib.get_close_matches(unknown[0], known, 1)
    write = f"Write {near[0]}=..." if near else f"Write one of {', '.join(known)}"
    return f"{where}: there is no option {unknown[0]!r}. {write}."
