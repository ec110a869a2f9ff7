"""Commands as people type them: a line for a shell, and the raw command for redis-cli. Pure.

Names may hold any bytes (as text with ``surrogateescape``). A written command is one line, moves no cursor, and is read
back as the very same bytes.
"""

import re
import shlex
from collections.abc import Iterable, Sequence

Word = bytes | str | int | float

_BARE = re.compile(rb"[A-Za-z0-9_.:/@%+=,*$<>(~{}\[\]|-]+")
_ESCAPED = {ord('"'): b'\\"', ord("\\"): b"\\\\", ord("\n"): b"\\n", ord("\r"): b"\\r", ord("\t"): b"\\t"}


def shell_line(words: Iterable[str]) -> str:
    """A command line for a shell; what cannot be printed is in the quotes of bash and zsh that escape it."""
    return " ".join(_shell_word(word) for word in words)


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    data = as_bytes(word)
    quoted = "".join(
        f"\\{byte:c}" if byte in b"\\'" else f"{byte:c}" if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in data
    )
    return f"$'{quoted}'"


def raw_line(command: Sequence[Word]) -> str:
    """A raw command as redis-cli reads it: words in quotes where they need them."""
    return b" ".join(map(_raw_word, command)).decode("ascii")


def _raw_word(word: Word) -> bytes:
    data = as_bytes(word)
    if _BARE.fullmatch(data):
        return data
    return b'"' + b"".join(_ESCAPED.get(c) or (b"%c" if 32 <= c < 127 else b"\\x%02x") % c for c in data) + b'"'


def as_bytes(word: Word) -> bytes:
    """A word as it is sent; of half a character, which nothing sends, what it is."""
    if isinstance(word, bytes):
        return word
    try:
        return str(word).encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return str(word).encode(errors="backslashreplace")
