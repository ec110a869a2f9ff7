"""Readable form of a dead letter: the payload from its binary envelope, and the user's part of the traceback."""

import re
from collections.abc import Sequence

from millstream.client.jsontext import parse_record
from millstream.client.payloads import envelope

_FRAME = re.compile(r'  File "(?P<path>.*)", line \d+, in ')
#: Packages between Millstream and a handler: its own, those that inject arguments, and the standard library.
_OURS = re.compile(
    r"[/\\]millstream[/\\](worker|compat|testing|client)[/\\]|[/\\]site-packages[/\\](fast_depends|anyio|pydantic)[/\\]"
)
_BETWEEN = re.compile(r"[/\\]python3\.\d+[/\\](?!site-packages)(?!dist-packages)|^<frozen ")


def readable(pairs: Sequence[Sequence[bytes]]) -> tuple[dict[str, str], object]:
    """Return headers and payload of an entry in FastStream's envelope; no headers and None for any other entry."""
    for name, value in pairs:
        if name == envelope.FIELD and value.startswith(envelope.MAGIC):
            try:
                found = envelope.parse(value)
            except ValueError:  # the JSON is damaged: show it unchanged
                continue
            try:
                return found.headers, parse_record(found.body)
            except ValueError:
                return found.headers, found.body
    return {}, None


def users_part(text: str) -> str:
    """Return a traceback without the worker's frames before the user's code.

    A traceback without user code is unchanged.
    """
    lines, found = text.splitlines(), list[str]()
    at = 0
    while at < len(lines):
        frames, end = _frames(lines, at)
        kept = _users(frames)
        if len(kept) < len(frames):
            found.append(f"  ({len(frames) - len(kept)} frames of the worker before; -o json shows them)")
        found += [line for _, part in kept for line in part]
        if end < len(lines):
            found.append(lines[end])
        at = end + 1
    return "\n".join(found)


_Frame = tuple[str, list[str]]


def _frames(lines: list[str], at: int) -> tuple[list[_Frame], int]:
    """Return the frames from this line on, each with its path, and the number of the first line after them."""
    frames: list[_Frame] = []
    while at < len(lines):
        begins = _FRAME.match(lines[at])
        if begins is not None:
            frames.append((begins["path"], [lines[at]]))
        elif frames and lines[at].startswith("    "):
            frames[-1][1].append(lines[at])
        else:
            break
        at += 1
    return frames, at


def _users(frames: list[_Frame]) -> list[_Frame]:
    """Return the frames of a traceback, from the first one in the user's code."""
    for at, (path, _) in enumerate(frames):
        if not _OURS.search(path) and not _BETWEEN.search(path):
            return frames[at:] if any(_OURS.search(before) for before, _ in frames[:at]) else frames
    return frames
