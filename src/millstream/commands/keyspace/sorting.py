"""SORT and SORT_RO: sort the elements of a list, set or sorted set, replace them by looked-up values, store them.

Texts are compared by their bytes. Redis compares texts that it does not store by the locale of its process.

Source: https://redis.io/docs/latest/commands/sort/
"""

from dataclasses import dataclass, field

from millstream.commands.context.context import WRONGTYPE, Context, Origin
from millstream.commands.keyspace.lists import LIST
from millstream.commands.table.args import SYNTAX, integer, keyword, read_bound
from millstream.commands.table.table import GENERIC
from millstream.engine.collections import HashValue, ListValue, SetValue, ZSetValue
from millstream.engine.keyspace import StringValue
from millstream.errors import CommandError
from millstream.replies import Reply


@dataclass(slots=True)
class _Sorting:
    """SORT's options."""

    descending: bool = False  # DESC
    alpha: bool = False  # ALPHA
    limit: tuple[int, int] = (0, -1)  # Offset and count; a negative count means all
    by: bytes | None = None  # Pattern of the last BY
    unsorted: bool = False  # Some BY had no star, so nothing is sorted, even if a later BY has one
    gets: list[bytes] = field(default_factory=list)  # Patterns of GET
    store: bytes | None = None  # Key of STORE


def _options(ctx: Context, argv: list[bytes], *, stores: bool) -> _Sorting:
    """Read the options after the key.

    A pattern may name any key, so it needs the right to read all keys.
    """
    asked, at = _Sorting(), 2
    user = None if ctx.session.user is None else ctx.host.accounts.get(ctx.session.user)
    reads_every_key = user is None or ctx.row is None or user.reads_every_key(ctx.row, argv)
    while at < len(argv):
        word, left = keyword(argv[at]), len(argv) - at - 1
        if word in {b"ASC", b"DESC"}:
            asked.descending = word == b"DESC"
        elif word == b"ALPHA":
            asked.alpha = True
        elif word == b"LIMIT" and left >= 2:
            asked.limit = integer(argv[at + 1]), integer(argv[at + 2])
            at += 2
        elif word == b"STORE" and stores and left:
            asked.store = argv[at + 1]
            at += 1
        elif word in {b"BY", b"GET"} and left:
            pattern = argv[at + 1]
            names_nothing = word == b"BY" and b"*" not in pattern.partition(b"\0")[0]
            if word == b"BY":
                asked.by, asked.unsorted = pattern, asked.unsorted or names_nothing
            else:
                asked.gets.append(pattern)
            if not reads_every_key and not names_nothing:
                name = word.decode()
                raise CommandError(f"ERR {name} option of SORT denied due to insufficient ACL permissions.")
            at += 1
        else:
            raise SYNTAX
        at += 1
    return asked


def _found(ctx: Context, pattern: bytes, element: bytes) -> bytes | None:
    """Return the value at the key that a pattern names for an element: a string, or a field (``key->field``).

    The element replaces the star in the pattern.
    """
    if pattern.partition(b"\0")[0] == b"#":
        return element
    before, star, behind = pattern.partition(b"*")
    if not star or b"\0" in before:
        return None
    name, arrow, hash_field = behind.partition(b"->")
    if not hash_field:
        name, arrow = behind, b""
    value = ctx.lookup(before + element + name)
    if arrow:
        return value.fields.get(hash_field) if isinstance(value, HashValue) else None
    return value.data if isinstance(value, StringValue) else None


def _number(word: bytes) -> float:
    """Return a score as Redis's C code reads it. Empty text is 0."""
    digits = word.partition(b"\0")[0]
    value = read_bound(digits) if digits else 0.0
    if value is None:
        raise CommandError("ERR One or more scores can't be converted into double")
    return value


def _elements(ctx: Context, key: bytes) -> tuple[list[bytes], bool]:
    """Return the elements to sort, and True if they are a set, which has no order."""
    value = ctx.lookup(key)
    if value is None:
        return [], False
    if isinstance(value, ListValue):
        return value.between(0, len(value)), False
    if isinstance(value, ZSetValue):
        return [member for _, member in value.between(0, len(value))], False
    if isinstance(value, SetValue):
        return list(value), True
    raise CommandError(WRONGTYPE)


def _in_order(ctx: Context, elements: list[bytes], asked: _Sorting) -> list[bytes]:
    """Return the elements sorted by themselves or by BY's values.

    If BY finds no value for an element, the element sorts first as text, or as 0.
    """

    def by_text(element: bytes) -> tuple[bool, bytes]:
        found = element if asked.by is None else _found(ctx, asked.by, element)
        return found is not None, found or b""

    def by_number(element: bytes) -> tuple[float, bytes]:
        found = element if asked.by is None else _found(ctx, asked.by, element)
        return 0.0 if found is None else _number(found), element

    return sorted(elements, key=by_text if asked.alpha else by_number, reverse=asked.descending)


def _limited(elements: list[bytes], limit: tuple[int, int]) -> list[bytes]:
    """Return the elements within LIMIT. A negative offset counts as 0."""
    start, count = max(limit[0], 0), limit[1]
    return elements[start:] if count < 0 else elements[start : start + count]


def _sort(ctx: Context, argv: list[bytes], *, stores: bool) -> Reply:
    """Carry out SORT and SORT_RO.

    A BY without a star keeps the order of the elements. But a set is sorted if the result is stored or a script reads
    it.
    """
    asked = _options(ctx, argv, stores=stores)
    elements, is_set = _elements(ctx, argv[1])
    if asked.unsorted and is_set and (asked.store is not None or ctx.origin is Origin.SCRIPT):
        asked.by, asked.alpha, asked.unsorted = None, True, False
    if not asked.unsorted:
        elements = _in_order(ctx, elements, asked)
    elif asked.descending and not is_set:
        elements.reverse()
    elements = _limited(elements, asked.limit)
    if not asked.gets:
        found: list[bytes | None] = list(elements)
    else:
        found = [_found(ctx, pattern, element) for element in elements for pattern in asked.gets]
    if asked.store is None:
        return list(found)
    items = [item or b"" for item in found]
    ctx.host.weigh(sum(map(len, items)))
    step = ("lpush", ctx.db.index, asked.store, items, False, True) if items else None
    LIST.stored(ctx, asked.store, step, "sortstore", len(items))
    return len(items)


@GENERIC.command("sort", -2, "write denyoom movablekeys", acl="set sortedset list dangerous")
def sort(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the elements, or GET's value for each; with STORE their number."""
    return _sort(ctx, argv, stores=True)


@GENERIC.command("sort_ro", -2, "readonly movablekeys", acl="set sortedset list dangerous")
def sort_ro(ctx: Context, argv: list[bytes]) -> Reply:
    """Carry out SORT without STORE."""
    return _sort(ctx, argv, stores=False)
