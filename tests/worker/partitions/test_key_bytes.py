"""Partition keys of ordinary Python types."""

import enum

import pytest

from millstream.client.partitions.layout import key_bytes
from millstream.errors import UsageError


class _Customer(enum.IntEnum):
    ADA = 7


class _Price(float):
    def __repr__(self) -> str:
        return f"_Price({float(self)})"


@pytest.mark.parametrize(
    ("key", "expected"), [(_Customer.ADA, b"7"), (_Price(1.5), b"1.5"), (7, b"7"), (-0.0, b"-0.0"), ("\udcff", b"\xff")]
)
def test_a_number_of_a_subclass_chooses_the_partition_of_its_value(key: object, expected: bytes) -> None:
    """A key of a number subclass, such as an IntEnum or a NumPy float, chooses the partition of its plain value."""
    assert key_bytes(key) == expected


@pytest.mark.parametrize(
    "key", ["\ud800", 10**5000, True, None, object()], ids=["surrogate", "digits", "bool", "none", "object"]
)
def test_a_key_without_bytes_is_an_error_with_a_way_out(key: object) -> None:
    """A key that cannot be converted to bytes is a clear error about ``publish``, not Python's codec error."""
    with pytest.raises(UsageError, match="publish"):
        key_bytes(key)
