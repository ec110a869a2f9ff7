"""Splitting an inline command into arguments by Redis's quoting rules.

Source: ``sdssplitargs`` of Redis (https://github.com/redis/redis/blob/7.0/src/sds.c), which redis-cli uses as well.
"""

import re

# Separators of arguments; as in Redis, the last two do not end an argument
_BLANKS = re.compile(rb"[ \n\r\t\v\f]*")
# An argument, which may end with a quoted part, before a blank or the end. No two alternatives match the same bytes, so
# a line of any length takes a single pass.
_WORD = re.compile(
    rb"""([^ \n\r\t"']*)
    (?: "((?: [^"\\] | \\. )*)" (?=[ \n\r\t\v\f]|\Z)
    |   '((?: [^'\\] | \\' | \\(?!') )*)' (?=[ \n\r\t\v\f]|\Z)
    |   (?=[ \n\r\t]|\Z) )""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPED = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[bytes] | None:
    r"""Return the arguments in a line, or None if its quotes do not balance.

    Double quotes allow ``\\n \\r \\t \\b \\a \\xHH``, single quotes only ``\\'``. After a closing quote must come a
    blank or the end. The line ends at a NUL byte, as in Redis.
    """
    line = line.partition(b"\0")[0]
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while (at := _BLANKS.match(line, at).end()) < len(line):  # type: ignore[union-attr] # it matches nothing, too
        found = _WORD.match(line, at)
        if found is None:
            return None
        plain, double, single = found.groups(b"")
        words.append(plain + _ESCAPED.sub(_escaped, double) + single.replace(b"\\'", b"'"))
        at = found.end()
    return words


def _escaped(found: "re.Match[bytes]") -> bytes:
    """Return the bytes of an escape within double quotes; an unknown escape stands for its letter."""
    code, letter = found.groups()
    return bytes([int(code, 16)]) if code else _CONTROLS.get(letter, letter)
