"""Positions on earth in sorted sets: GEOADD GEOPOS GEODIST GEOHASH.

A position is a score of 52 bits: 26 bits of longitude interleaved with 26 bits of latitude. All other commands on
sorted sets treat it as a plain number.

Source: https://redis.io/docs/latest/commands/?group=geo
"""

import math

from millstream.commands.context.context import Context
from millstream.commands.keyspace.collections import Family
from millstream.commands.keyspace.zsets import NOT_A_FLOAT, add_scores, zset_at
from millstream.commands.table.args import SYNTAX, keyword, read_double
from millstream.errors import CommandError
from millstream.replies import NIL_ARRAY, Reply

GEO = Family("geo", "z")
_BITS = 26
_CELLS = 1 << _BITS
_LONGITUDES = (-180.0, 180.0)
_LATITUDES = (-85.05112878, 85.05112878)  # the limits of the square Web Mercator map
_EARTH = 6372797.560856  # radius in metres
_LETTERS = b"0123456789bcdefghjkmnpqrstuvwxyz"
_UNITS = {b"M": 1.0, b"KM": 1000.0, b"FT": 0.3048, b"MI": 1609.34}

Point = tuple[float, float]


def _spread(number: int) -> int:
    """Return the bits of a number with a zero bit before each."""
    return int(f"{number:b}", 4)


def _gathered(bits: int) -> int:
    """Return every second bit, from the lowest on: the inverse of :func:`_spread`."""
    return int(f"{bits:064b}"[1::2], 2)


def _encoded(point: Point, latitudes: tuple[float, float]) -> int:
    """Return the interleaved bits of a position."""
    longitude, latitude = (
        int((at - low) / (high - low) * _CELLS) for at, (low, high) in zip(point, (_LONGITUDES, latitudes), strict=True)
    )
    return _spread(latitude) | _spread(longitude) << 1


def _middle(cell: int, limits: tuple[float, float]) -> float:
    """Return the middle of a cell."""
    low, high = limits
    ends = [low + at * 1.0 / _CELLS * (high - low) for at in (cell, cell + 1)]
    return min(max((ends[0] + ends[1]) / 2, low), high)


def _decoded(score: float) -> Point:
    """Return the position that a score encodes. Any score is valid, since CPUs convert any double to an integer."""
    bits = int(score) % 2**64 if -(2.0**63) <= score < 2.0**64 else 2**63 * (score < 0)
    return _middle(_gathered(bits >> 1), _LONGITUDES), _middle(_gathered(bits), _LATITUDES)


def _point(words: list[bytes]) -> Point:
    """Return longitude and latitude from the client's arguments."""
    longitude, latitude = (read_double(word) for word in words)
    if longitude is None or latitude is None:
        raise CommandError(NOT_A_FLOAT)
    if abs(longitude) > _LONGITUDES[1] or abs(latitude) > _LATITUDES[1]:
        raise CommandError(f"ERR invalid longitude,latitude pair {longitude:f},{latitude:f}")
    return longitude, latitude


@GEO.command("geoadd", -5, "write denyoom")
def geoadd(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out ZADD with the scores of the positions."""
    at, chosen = 2, set()
    while at < len(argv) and keyword(argv[at]) in {b"NX", b"XX", b"CH"}:
        chosen.add(keyword(argv[at]))
        at += 1
    if (len(argv) - at) % 3 or at == len(argv) or {b"NX", b"XX"} <= chosen:
        raise SYNTAX
    pairs = [
        (argv[here + 2], float(_encoded(_point(argv[here : here + 2]), _LATITUDES))) for here in range(at, len(argv), 3)
    ]
    return add_scores(ctx, argv[1], frozenset(chosen), pairs)


def _places(ctx: Context, key: bytes, members: list[bytes]) -> list[Point | None]:
    """Return the positions of members; None for each absent member."""
    value = zset_at(ctx, key)
    scores = {} if value is None else value.scores
    return [_decoded(scores[member]) if member in scores else None for member in members]


@GEO.command("geopos", -2, "readonly")
def geopos(ctx: Context, argv: list[bytes]) -> Reply:
    """Return longitude and latitude of each member; a null array for an absent member."""
    return [NIL_ARRAY if place is None else list(place) for place in _places(ctx, argv[1], argv[2:])]


@GEO.command("geohash", -2, "readonly")
def geohash(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the standard geohash of each member, in eleven letters.

    Standard geohashes divide the latitudes from pole to pole. The last letter is 0, since 52 bits do not fill it.
    """
    found: list[Reply] = []
    for place in _places(ctx, argv[1], argv[2:]):
        bits = 0 if place is None else _encoded(place, (-90.0, 90.0)) >> 2
        letters = bytes(_LETTERS[bits >> shift & 31] for shift in range(45, -1, -5)) + b"0"
        found.append(None if place is None else letters)
    return found


@GEO.command("geodist", -4, "readonly")
def geodist(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the distance of two members with four decimal places; null if one is absent.

    The earth counts as a sphere.
    """
    if len(argv) > 5:
        raise SYNTAX
    unit = _UNITS.get(keyword(argv[4])) if len(argv) == 5 else 1.0
    if unit is None:
        raise CommandError("ERR unsupported unit provided. please use M, KM, FT, MI")
    one, two = _places(ctx, argv[1], argv[2:4])
    return None if one is None or two is None else f"{_distance(one, two) / unit:.4f}".encode()


def _distance(one: Point, two: Point) -> float:
    """Return the distance between two positions in metres, by the haversine formula."""
    (longitude1, latitude1), (longitude2, latitude2) = ((math.radians(x), math.radians(y)) for x, y in (one, two))
    across, along = math.sin((longitude2 - longitude1) / 2), math.sin((latitude2 - latitude1) / 2)
    haversine = along * along + math.cos(latitude1) * math.cos(latitude2) * across * across
    return 2.0 * _EARTH * math.asin(math.sqrt(haversine))
