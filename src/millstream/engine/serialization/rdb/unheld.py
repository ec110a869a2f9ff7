"""Values in RDB files of types that Millstream does not have: they are skipped and reported by name. PURE.

Skipping one requires knowledge of its form, since a value does not begin with its size.
"""

from collections.abc import Callable

from millstream.engine.serialization.plain import MalformedError
from millstream.engine.serialization.rdb.pieces import string
from millstream.engine.serialization.rdb.sizes import Payload

# Letters of a module's name in its id, with six bits each
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_MODULE_END, _SIGNED, _UNSIGNED, _FLOAT, _DOUBLE, _TEXT = range(6)


def module_name(number: int) -> str:
    """The name in the upper 54 bits of a module type's id."""
    return "".join(_LETTERS[number >> shift & 63] for shift in range(58, 4, -6))


def pass_module_parts(source: Payload) -> None:
    """Skip the data of a module; each part of it begins with its type."""
    while (part := source.size()) != _MODULE_END:
        if part in {_SIGNED, _UNSIGNED}:
            source.size()  # modules write integers in the form of sizes
        elif part in {_FLOAT, _DOUBLE}:
            source.take(4 if part == _FLOAT else 8)
        elif part == _TEXT:
            string(source)
        else:
            raise MalformedError(f"an unknown part {part} of a module's value")


def pass_module_aux(source: Payload) -> str:
    """Skip a module's data outside of keys; return its name."""
    name = module_name(source.size())
    if source.size() != _UNSIGNED:
        raise MalformedError("a module's data that do not say when they are read")
    source.size()
    pass_module_parts(source)
    return name


def pass_key_metadata(source: Payload) -> None:
    """Skip the modules' data about one key."""
    for _ in range(source.size()):
        source.take(4)
        pass_module_parts(source)


def _pass_module(source: Payload) -> str:
    name = module_name(source.size())
    pass_module_parts(source)
    return f"module type {name}"


def _pass_fields(source: Payload, *, is_absolute: bool) -> str:
    """Skip a hash table whose fields have times to live."""
    if not is_absolute:
        source.take(8)
    for _ in range(source.size()):
        source.size()
        string(source)
        string(source)
    return _FIELD_TIMES


def _pass_packed_fields(source: Payload, *, is_absolute: bool) -> str:
    """Skip a listpack of fields, values and times to live."""
    if not is_absolute:
        source.take(8)
    string(source)
    return _FIELD_TIMES


def _pass_array(source: Payload) -> str:
    """Skip an array: a count, the position of the next element, then positions and elements."""
    count = source.size()
    if source.size():
        source.size()
    for _ in range(count):
        source.size()
        if source.size() in {_ARRAY_INTEGER, _ARRAY_FLOAT}:
            source.take(8)
        else:
            string(source)
    return "array"


def _pass_valkey_fields(source: Payload) -> str:
    for _ in range(source.size()):
        string(source)
        string(source)
        source.take(8)
    return _FIELD_TIMES


_FIELD_TIMES = "hash with times to live of fields"
_ARRAY_INTEGER, _ARRAY_FLOAT = 1, 2
_REDIS: dict[int, Callable[[Payload], str]] = {
    7: _pass_module,
    22: lambda source: _pass_fields(source, is_absolute=True),
    23: lambda source: _pass_packed_fields(source, is_absolute=True),
    24: lambda source: _pass_fields(source, is_absolute=False),
    25: lambda source: _pass_packed_fields(source, is_absolute=False),
    28: _pass_array,
}
_VALKEY: dict[int, Callable[[Payload], str]] = {7: _pass_module, 22: _pass_valkey_fields}


def passing(kind: int, *, is_valkey: bool) -> Callable[[Payload], str]:
    """Return the function that skips a value of a type that Millstream does not have, and returns its name."""
    found = (_VALKEY if is_valkey else _REDIS).get(kind)
    if found is None:
        raise MalformedError(f"type {kind} is unknown, so what lies behind it cannot be found")
    return found
