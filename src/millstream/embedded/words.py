"""Words as the bytes of a command, as a client sends them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from hiredis import pack_command

from millstream import core

# hiredis's stub asks for a tuple of one element
_pack = cast("Callable[[tuple[Any, ...]], bytes]", pack_command)


def py_pack_words(words: tuple[Any, ...]) -> bytes:
    """A command."""
    return _pack(words)


if TYPE_CHECKING:
    pack_words = py_pack_words
else:
    pack_words = core.choose(py_pack_words)
