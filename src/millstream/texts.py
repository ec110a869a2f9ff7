"""Values as text: readable forms with units, which cannot move a terminal's cursor, and JSON and CSV for programs.

The command line and the console use this module to show the same facts.

Any client may have written the values shown here: any bytes, numbers that no calendar has, deeply nested lists. No
function here raises an error for a value.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

from millstream.errors import UsageError
from millstream.printable import printable

Kind = Literal["text", "prose", "count", "bytes", "time", "span"]
"""The kind of a value: ``prose`` is text that may be wrapped, ``time`` and ``span`` are milliseconds."""

_DEEPEST = 50
"""Number of nested levels of lists and objects that are shown."""

_TOO_DEEP = f"(more than {_DEEPEST} levels deep)"

_LARGEST = 10_000
"""Largest size of a number in bits. Python does not convert a larger one to text."""

_TOO_LARGE = "(a number too large)"

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def shown(value: object, kind: Kind = "text") -> str:
    """Return a value in readable form."""
    return _shown(value, kind, 0)


def _shown(value: object, kind: Kind, depth: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return printable(value.decode(errors="backslashreplace"))
    if isinstance(value, int | float):
        return _figure(value, kind)
    if isinstance(value, Mapping):
        return printable(json_text(value))
    if isinstance(value, list | tuple):
        if depth == _DEEPEST:
            return _TOO_DEEP
        return ", ".join(_shown(each, "text", depth + 1) for each in value) or "-"
    return printable(str(value))


def _figure(value: float, kind: Kind) -> str:
    try:
        if kind == "bytes":
            return size_text(int(value))
        if kind == "time":
            return time_text(int(value))
        if kind == "span":
            return span_text(value)
        return str(value)
    except (ValueError, OverflowError):  # infinite, or with too many digits to convert
        return str(value) if isinstance(value, float) else _TOO_LARGE


def size_text(size: int) -> str:
    """Return a size with a decimal prefix: ``"1.4 MB"``."""
    figure, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if figure < 1000:
            break
        figure, unit = figure / 1000, larger
    if unit == "bytes":
        return plural(size, "byte")
    return f"{figure:.1f} {unit}"


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 entry``, ``2 entries``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def time_text(milliseconds: int) -> str:
    """Return a wall time in UTC: ``"2026-03-01T12:00:00.250Z"``. A time that no calendar has stays in milliseconds."""
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def span_text(milliseconds: float) -> str:
    """Return a duration: ``"1.3 ms"``, ``"2.5 s"``, ``"3 h 20 min"``, ``"5 d 4 h"``."""
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    seconds = int(milliseconds / 1000)
    if seconds < 60:
        return f"{milliseconds / 1000:.1f} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if hours < 1:
        return f"{minutes} min {seconds % 60} s"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"


def in_one_line(text: str) -> str:
    """Return the text as one line: escape unprintable characters and line breaks."""
    return printable(text).replace("\n", "\\n")


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON that cannot move a cursor: unprintable characters become JSON escapes."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def plain(value: object, depth: int = 0) -> object:
    """Return a value that JSON can hold.

    Bytes that are not UTF-8 become ``{"base64": ...}``. Values of other types become their text.
    """
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < _LARGEST else _TOO_LARGE
    if isinstance(value, float):  # JSON has no NaN or infinities; Spark gives them these names
        return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _base64(value)
    if isinstance(value, Mapping | list | tuple) and depth == _DEEPEST:
        return _TOO_DEEP
    if isinstance(value, Mapping):
        return {_name(name): plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth + 1) for each in value]
    return str(value)


def cell(value: object) -> object:
    """Return a value that CSV can hold: an empty cell for null, JSON for a list or an object."""
    found = plain(value)
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str) and not found.isascii():
        return found.encode(errors="backslashreplace").decode()
    return json_text(found) if isinstance(found, dict | list) else found


def csv_cell(value: object, lines: Callable[[str], str] = printable) -> object:
    """Return a CSV cell that cannot move a terminal's cursor and that no spreadsheet runs as a formula."""
    found = cell(value)
    if not isinstance(found, str) or isinstance(value, float):
        return found
    # Spreadsheets run such a cell as a formula; an apostrophe marks it as text
    return ("'" if found.lstrip().startswith(("=", "+", "-", "@")) else "") + lines(found)


def _text(value: str) -> object:
    """Return the text. If it was decoded with ``surrogateescape``, return its bytes as base64."""
    if not _ESCAPED_BYTE.search(value):
        return value
    try:
        return _base64(value.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # half of a surrogate pair, which a client's JSON may contain
        return value


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _name(name: object) -> str:
    text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
    return text.encode(errors="backslashreplace").decode()


def said(refusal: Exception) -> str:
    """Return the text of a server's refusal.

    If another node of a Redis Cluster has the key, raise an error that names the right URL form.
    """
    if type(refusal).__name__ != "MovedError":  # redis-py's class, whose text lacks the code
        return str(refusal)
    raise UsageError(
        "the URL names one node of a Redis Cluster, and another has the key: use redis+cluster://HOST:PORT"
    ) from refusal


def is_utf8(data: bytes) -> bool:
    """Return True if all bytes are valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def can_be_name(value: object) -> bool:
    """Return True if a key or a group can have that name.

    A name cannot contain half of a surrogate pair, which JSON allows.
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
