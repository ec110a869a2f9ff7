"""Both cores pack arguments into the same bytes, and refuse the same values."""

import enum
import random

import pytest

from millstream.embedded.words import pack_words, py_pack_words

WORDS = ["", "XADD", "a\0b", "x" * 2000, "é", "\U0001f375", b"", b"\r\n", bytes(range(256)) * 3]
NUMBERS = [0, 9, 10, -1, 2**63 - 1, 2**63, -(2**63), 10**40, 0.0, -1.5, 1e22, float("inf"), float("nan")]


class _Name(str):
    __slots__ = ()


class _Number(enum.IntEnum):
    ONE = 1


def test_both_cores_pack_alike() -> None:
    """Both cores pack few or many arguments of every kind into the same bytes."""
    chance = random.Random(1)
    for count in [1, 2, 3, 9, 40, 700] * 40:
        words = tuple(chance.choices([*WORDS, *NUMBERS, _Name("tea"), memoryview(b"tea")], k=count))
        assert pack_words(words) == py_pack_words(words)
    for word in [*WORDS, *NUMBERS]:
        assert pack_words((word,)) == py_pack_words((word,))
    assert pack_words(("XADD", "s", 10, b"\xff")) == b"*4\r\n$4\r\nXADD\r\n$1\r\ns\r\n$2\r\n10\r\n$1\r\n\xff\r\n"


def test_numbers_of_any_length() -> None:
    """Both cores pack numbers on both sides of each power of ten into the same digits."""
    for power in range(20):
        for number in (10**power - 1, 10**power, 10**power + 5):
            assert pack_words((number,)) == py_pack_words((number,))


@pytest.mark.parametrize("word", [None, True, _Number.ONE, bytearray(b"tea"), ["tea"], "\ud800"])
def test_what_is_no_word_is_refused(word: object) -> None:
    """Both cores refuse an invalid argument with the same error."""
    errors = []
    for pack in (pack_words, py_pack_words):
        with pytest.raises((TypeError, UnicodeEncodeError)) as caught:
            pack(("SET", word, 1))
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
