"""The first line of a script, ``#!lua flags=a,b``, read as Redis reads it.

Its arguments follow the syntax of Redis's configuration lines, with quotes and escapes.
"""

import re

from millstream.errors import CommandError

_FLAGS = frozenset({"no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"})
_SPACE = re.compile(rb"[ \t\r\n\v\f]*")
_WORD = re.compile(rb"""([^ \t\r\n"']*+)(?:"((?:\\.|[^"\\])*+)"|'((?:\\'|[^'])*+)')?(?=[ \t\r\n\v\f]|\Z)""", re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def flags_of(source: bytes) -> set[str]:
    """The flags of a script that begins with ``#!``."""
    line, newline, _ = source.partition(b"\n")
    if not newline or b"\0" in line:
        raise CommandError("ERR Invalid script shebang")
    words = _split(line)
    if words is None:
        raise CommandError("ERR Invalid engine in script shebang")
    if _text(words[0]) != "#!lua":
        raise CommandError(f"ERR Unexpected engine in script shebang: {_text(words[0])}")
    flags: set[str] = set()
    for word in words[1:]:
        if not word.startswith(b"flags="):
            raise CommandError(f"ERR Unknown lua shebang option: {_text(word)}")
        listed = word.removeprefix(b"flags=")
        for flag in map(_text, listed.split(b",") if listed else []):
            if flag not in _FLAGS:
                raise CommandError(f"ERR Unexpected flag in script shebang: {flag}")
            flags.add(flag)
    return flags


def _split(line: bytes) -> list[bytes] | None:
    """Split a line into arguments; None if a quote ends inside one."""
    words, at = [], 0
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            return None
        plain, double, single = found.groups(b"")
        words.append(plain + _ESCAPE.sub(_unescaped, double) + single.replace(b"\\'", b"'"))
        at = found.end()
        spaces = _SPACE.match(line, at)
        at = spaces.end() if spaces else at
    return words


def _unescaped(found: "re.Match[bytes]") -> bytes:
    code = found[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _CONTROLS.get(code, code)


def _text(word: bytes) -> str:
    """Return an argument as a C string: up to a NUL, which an escape can make."""
    return word.partition(b"\0")[0].decode("utf-8", "surrogateescape")
