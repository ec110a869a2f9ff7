"""Entry ids: every form that clients may write, and the refusal of all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.engine import ids

halves = st.integers(0, ids.MAX64)

ACCEPTED = {
    b"5": (5, 0),
    b"5-7": (5, 7),
    b"0-0": (0, 0),
    b"05-07": (5, 7),
    b"+9-1": (9, 1),
    b"9-+1": (9, 1),
    b" 13-1": (13, 1),
    b"\t\n13-1": (13, 1),
    b"10- 5": (10, 5),
    b"11--0": (11, 0),
    b"5--07": (5, 2**64 - 7),
    b"18446744073709551615-18446744073709551615": (ids.MAX64, ids.MAX64),
    b"9999999999999999999-9999999999999999999": (10**19 - 1, 10**19 - 1),
    b"00000000000000000005-00000000000000000007": (5, 7),
    b"000000000000000000000000000000000000001-2": (1, 2),
    b"5-7\0anything": (5, 7),
    b"5\0-7": (5, 0),
}
REFUSED = [
    b"",
    b"-",
    b"+",
    b"$",
    b">",
    b"*",
    b"5-",
    b"-5",
    b"-5-1",
    b"5-1-1",
    b"5 -1",
    b"5-1 ",
    b"5-1\n",
    b"0x5-1",
    b"5-0x1",
    b"5.0",
    b"1e3",
    b"abc",
    b"5-*",
    b"5--1",
    b"18446744073709551616",
    b"99999999999999999999-1",
    b"1-18446744073709551616",
    b"5-\xb2",
    b"(5-1",
    b"0" * 126 + b"-1",
]


@pytest.mark.parametrize(("word", "halves"), ACCEPTED.items())
def test_an_id_may_be_written_as_c_reads_numbers(word: bytes, halves: tuple[int, int]) -> None:
    """An id may have leading zeros, a plus, leading blanks and bytes after a NUL, as in Redis."""
    assert ids.parse(word) == ids.make(*halves)


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_no_id_is_refused(word: bytes) -> None:
    """Empty halves, trailing blanks, signs, hexadecimals and numbers past 64 bits are refused as ids."""
    assert ids.parse(word) is None


def test_the_longest_word_has_127_bytes() -> None:
    """An id has at most 127 bytes: Redis copies it into 128, one of them the terminator."""
    assert ids.parse(b"0" * 125 + b"-1") == ids.make(0, 1)
    assert ids.parse(b"0" * 126 + b"-1") is None
    assert ids.parse_special(b"-" + b"\0" * 127) is None


def test_a_missing_sequence_is_what_the_caller_says() -> None:
    """A missing sequence has the caller's default: a range's end reads ``5`` as that millisecond's last id."""
    assert ids.parse(b"5", ids.MAX64) == ids.make(5, ids.MAX64)
    assert ids.parse(b"5-0", ids.MAX64) == ids.make(5, 0)


def test_minus_and_plus_are_the_smallest_and_the_largest() -> None:
    """``-`` and ``+`` are the smallest and largest id, where special ids are allowed."""
    assert ids.parse_special(b"-") == ids.MIN_ID
    assert ids.parse_special(b"+") == ids.MAX_ID
    assert ids.parse_special(b"-\0x") == ids.MIN_ID
    assert ids.parse_special(b"3") == ids.make(3, 0)


def test_a_parenthesis_excludes_an_id_but_not_a_sign() -> None:
    """``(5-1`` is an exclusive bound; ``(``, ``(-`` and ``(+`` are errors."""
    assert ids.parse_bound(b"(5-1", 0) == (ids.make(5, 1), True)
    assert ids.parse_bound(b"(5", ids.MAX64) == (ids.make(5, ids.MAX64), True)
    assert ids.parse_bound(b"5-1", 0) == (ids.make(5, 1), False)
    assert ids.parse_bound(b"+", 0) == (ids.MAX_ID, False)
    assert [ids.parse_bound(word, 0) for word in (b"(", b"(-", b"(+", b"((5")] == [None] * 4


def test_a_star_stands_for_the_sequence_only() -> None:
    """``ms-*`` generates the sequence; a star elsewhere in an id is an error."""
    assert ids.parse_auto_seq(b"5-*") == 5
    assert ids.parse_auto_seq(b"05-*") == 5
    assert [ids.parse_auto_seq(word) for word in (b"5", b"*", b"*-*", b"-*", b"5-**", b"5-1")] == [None] * 6


@given(halves, halves)
def test_text_and_packed_form_come_back(ms: int, seq: int) -> None:
    """An id that is written as text or packed, and read again, is unchanged."""
    entry = ids.make(ms, seq)
    assert ids.text(entry) == b"%d-%d" % (ms, seq)
    assert ids.parse(ids.text(entry)) == entry
    assert ids.unpack(ids.pack(entry)) == entry


@given(st.lists(st.integers(0, ids.MAX_ID)))
def test_packed_ids_sort_as_the_ids_do(numbers: list[int]) -> None:
    """Packed ids have sixteen bytes and sort as bytes in the order of the ids."""
    packed = ids.pack_all(numbers)
    assert len(packed) == 16 * len(numbers)
    assert ids.unpack_all(packed) == numbers
    assert sorted(map(ids.pack, numbers)) == list(map(ids.pack, sorted(numbers)))
