"""Encoding of a command's arguments to the bytes that a client sends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from hiredis import pack_command

from millstream import core

# hiredis's stub expects a tuple of one element
_pack = cast("Callable[[tuple[Any, ...]], bytes]", pack_command)


def py_pack_words(words: tuple[Any, ...]) -> bytes:
    """Return the bytes of a command."""
    return _pack(words)


if TYPE_CHECKING:
    pack_words = py_pack_words
else:
    pack_words = core.choose(py_pack_words)
