"""Hostile data for the command line's readers: mutations of valid records, by a seed."""

import json
from random import Random
from typing import Any

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.payloads import envelope

ATOMS: list[Any] = [
    None, True, 0, -1, 1 << 63, 1 << 4000, 1e308, float("inf"), float("nan"), "", "x", "\x1b[2J", "\x9b31m", "\u202e",
    "\ud800", "\x00", "\r\nfake", "9" * 400, "2026-01-01", [], {}, [[]], {"a": {"b": []}}, ["x"] * 50, "é" * 100,
]  # fmt: skip
BYTES = [
    b"", b"\x00", b"\xff", b"\x80", b"\xed\xa0\x80", b"\x1b[2J", b"\x9b", b"\r\n", b"[" * 1500, b'{"a":' * 600, b"NaN",
    b"1e999", b"9" * 5000, b"-", b"null", b'"', b"\\ud800", b"\xe2\x80\xae", b"0" * 20, b"--5", b"\xef\xbb\xbf{}",
]  # fmt: skip


def value(chance: Random, found: Any) -> Any:
    """Return a JSON value with a part replaced, left out, repeated or nested."""
    draw = chance.random()
    if isinstance(found, dict) and found and draw < 0.8:
        name = chance.choice(sorted(found))
        changed = {**found, name: value(chance, found[name])}
        if draw < 0.15:
            del changed[name]
        elif draw < 0.2:
            changed["more"] = chance.choice(ATOMS)
        return changed
    if isinstance(found, list) and found and draw < 0.8:
        at = chance.randrange(len(found))
        return [*found[:at], value(chance, found[at]), *found[at + (draw > 0.1) :]]
    if draw < 0.05:
        deep: Any = found
        for _ in range(chance.choice((10, 60, 300))):
            deep = [deep]
        return deep
    return chance.choice(ATOMS)


def text(chance: Random, found: bytes) -> bytes:
    """Return bytes with some of them changed, cut out, repeated or inserted."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        end = min(at + chance.choice((0, 1, 1, 4, 40)), len(found))
        middle = chance.choice((b"", bytes([chance.randrange(256)]), chance.choice(BYTES), found[at:end] * 2))
        found = found[:at] + middle + found[end:]
    return found


def record(chance: Random, found: Any) -> bytes:
    """Return the JSON of a mutated value, sometimes mutated again as bytes."""
    for _ in range(chance.choice((0, 1, 1, 2))):
        found = value(chance, found)
    made = json.dumps(found).encode()
    return text(chance, made) if chance.random() < 0.4 else made


def letter(chance: Random) -> list[bytes]:
    """Return fields and values of a valid or almost valid dead letter."""
    death = {
        "id": "1-0", "group": "billing", "consumer": "c", "deliveries": 5, "reason": "error", "error": "E: no",
        "died_ms": 1_763_721_600_000, "returned_ms": 1_763_721_700_000, "for": "billing",
    }  # fmt: skip
    packed = envelope.build({"correlation_id": "c", "content-type": "application/json"}, b'{"item": "tea"}')
    fields = (b"__data__", text(chance, packed) if chance.random() < 0.5 else packed, b"n", chance.choice(BYTES))
    flat = pack(
        DeadLetter(
            fields, chance.choice(("orders", "other")), "1-0", "billing", "c", 5, "error", "ValueError: no",
            'Traceback (most recent call last):\n  File "/a/millstream/worker/calls.py", line 1, in one\n    x()\n'
            '  File "/b.py", line 2, in mine\n    y()\nValueError: no', 1_763_721_600_000, 1_763_721_700_000, (death,),
        )
    )  # fmt: skip
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(flat))
        if flat[at - 1 : at] == [b"_dead.history"]:
            flat[at] = record(chance, [death] * chance.choice((1, 3, 30)))
        else:
            flat[at] = text(chance, flat[at])
    if chance.random() < 0.1:
        at = 2 * chance.randrange(len(flat) // 2)
        del flat[at : at + 2]
    return flat
