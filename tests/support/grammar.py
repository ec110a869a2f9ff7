"""Commands generated from the table's own notation of arguments, with sizes and values that an attacker would try."""

import random
from collections.abc import Callable

from millstream.commands.table.spec import Command
from millstream.commands.table.syntax import Argument, parse
from millstream.commands.table.table import TABLE
from millstream.node.commands import load_all

load_all()

INTEGERS = [b"0", b"1", b"-1", b"2", b"7", b"100", b"100000", b"1000000000", b"2147483647", b"2147483648"]
INTEGERS += [b"-2147483649", b"9223372036854775807", b"-9223372036854775808", b"18446744073709551616", b"1" * 5000]
DOUBLES = [b"0", b"1.5", b"-inf", b"inf", b"nan", b"1e308", b"1e-320", b"1e400", b"1e-16000", b"9" * 5000, b"0x1p99999"]
IDS = [
    b"*",
    b"$",
    b">",
    b"-",
    b"+",
    b"0",
    b"0-0",
    b"1-1",
    b"5-*",
    b"18446744073709551615-18446744073709551615",
    b"(1-1",
]
SHAPES = [b"*", b"?", b"a", b"[^]", b"[a-z]", b"*a", b"?*", b"[", b"\\", b"[^", b"**a", b"\\*"]
# Words that a value of any kind may be: some fit somewhere, all are looked at by something
WORDS = [
    b"",
    b"a",
    b"f",
    b"\xff\x00\r\n",
    b"x" * 10_000,
    b"*" * 1000,
    b"-",
    b"+@all",
    b"~*",
    b"(",
    b"(+@all ~*)",
    b"%R~",
]


class Grammar:
    """Generator of commands.

    Args:
        chance: The source of all random choices.
        keys: Names of keys to choose from.
        most: The maximum number of words in one command.
        pattern: The maximum number of bytes in a pattern.
        left_out: Commands that are not generated.
    """

    def __init__(
        self, chance: random.Random, keys: list[bytes], *, most: int, pattern: int, left_out: frozenset[str]
    ) -> None:
        self._chance = chance
        self._keys = keys
        self._most = most
        self._pattern = pattern
        self._left = most
        rows = [row for head in TABLE.values() for row in (head, *head.subcommands.values())]
        self.rows = [row for row in rows if row.handler is not None and row.name not in left_out]
        self._kinds: dict[str, Callable[[], bytes]] = {
            "key": lambda: chance.choice(keys),
            "integer": lambda: chance.choice(INTEGERS),
            "unix-time": lambda: chance.choice(INTEGERS),
            "double": lambda: chance.choice(DOUBLES),
            "pattern": self._make_pattern,
        }

    def command(self) -> list[bytes]:
        """Generate one command by the grammar, with occasional faults."""
        row = self._chance.choice(self.rows)
        return self.of(row)

    def of(self, row: Command) -> list[bytes]:
        """Generate a command of this row of the table."""
        self._left = self._most
        words = row.name.encode().split(b"|") + self._all(parse(row.document.syntax))
        if self._chance.random() < 0.1 and len(words) > 1:
            at = self._chance.randrange(1, len(words))
            words[at : at + self._chance.randrange(2)] = [self._chance.choice(WORDS + INTEGERS)]
        return words

    def _all(self, arguments: tuple[Argument, ...]) -> list[bytes]:
        return [word for argument in arguments for word in self._one(argument)]

    def _one(self, argument: Argument) -> list[bytes]:
        """Return the words of an argument, repeated as often as the grammar allows."""
        if argument.optional and self._chance.random() < 0.5:
            return []
        words = self._once(argument)
        if argument.multiple:
            for _ in range(self._times()):
                if self._left <= 0:
                    break
                words += self._once(argument)
        return words

    def _times(self) -> int:
        return self._chance.choice((0, 0, 1, 2, 5, 100, self._most))

    def _once(self, argument: Argument) -> list[bytes]:
        token = [argument.token.encode()] if argument.token else []
        if argument.type == "pure-token":
            words = token
        elif argument.type == "oneof":
            words = token + self._one(self._chance.choice(argument.parts))
        elif argument.type == "block":
            words = token + self._all(argument.parts)
        else:
            words = [*token, self._value(argument)]
        self._left -= len(words)
        return words

    def _value(self, argument: Argument) -> bytes:
        if argument.name in {"id", "start", "end", "last-id", "lastid", "last-delivered-id"}:
            return self._chance.choice(IDS)
        make = self._kinds.get(argument.type)
        return make() if make is not None else self._chance.choice(WORDS + self._keys + IDS)

    def _make_pattern(self) -> bytes:
        """Generate a pattern: one shape repeated, or several in turn."""
        shapes = self._chance.choices(SHAPES, k=self._chance.choice((1, 1, 2, 3)))
        unit = b"".join(shapes)
        return unit * self._chance.choice((1, 3, 30, max(self._pattern // len(unit), 1)))
