"""Checks of a script before Lua compiles it, and changes of the compiled code.

A script that would take too long to compile is refused. Tail calls of library functions become ordinary calls, in the
output of ``string.dump``. In Redis the libraries are written in C, and a call of C code never replaces its caller's
frame. Here they are Lua functions, and without the frame an error could not report its line. No result of a script
changes.

Only code that Lua itself has just compiled is read here; a client's bytes are never taken for compiled code. The cost
is one pass. Source of the format: lundump.c and lopcodes.h of Lua 5.1.5.
"""

import re
import struct
from array import array

_HEADER = 12
_MOVE, _GETUPVAL, _GETGLOBAL, _GETTABLE = 0, 4, 5, 6
_CALL, _TAILCALL, _SETLIST = 28, 29, 34
# Instructions that set the register in their field A
_SETS = frozenset([*range(_MOVE, 7), *range(10, 22), 27, _CALL, 36, 37])
_JUMPS = re.compile(rb"\b(?:break|elseif|and|or)\b")
# Limit of the compiler's work, about a second: comparisons of names, and jumps followed, each of which costs fifty
_WORK = 8_000_000_000
_JUMP_WEIGHT = 50
# Largest number of names that the compiler compares for each use of one: 200 locals, doubled because the text contains
# them too
_NAMES = 400


def objection(source: bytes) -> str | None:
    """Return why a source must not be compiled: the compiler could run for seconds, and nothing can stop it.

    Its cost grows with the square of the jumps in one list (``break``, ``elseif``, ``and``, ``or``), and with the
    length times the locals of all enclosing functions.
    """
    length = len(source)
    work = length * min(length, _NAMES * (1 + source.count(b"function")))
    work += _JUMP_WEIGHT * len(_JUMPS.findall(source)) ** 2
    if work <= _WORK:
        return None
    return (
        f"a text of {length} bytes with so many functions or branches takes too long to compile; "
        "pass data as arguments rather than in the text, or split the script"
    )


def mended(dump: bytes, *, keep_frames: bool = False) -> bytes:
    """Return the same code, in which callers of library functions keep their frames."""
    return _Mender(dump, keep_frames=keep_frames).run()


class _Mender:
    """One pass over a dump."""

    def __init__(self, dump: bytes, *, keep_frames: bool) -> None:
        if dump[:6] != b"\x1bLua\x51\x00" or dump[7] != 4 or dump[9:12] != b"\x04\x08\x00":
            raise ValueError("not compiled by the Lua 5.1 of this process")
        self._data = bytearray(dump)
        self._order = "<" if dump[6] else ">"
        self._int = struct.Struct(self._order + "i")
        self._size = struct.Struct(self._order + ("Q" if dump[8] == 8 else "I"))
        self._at = _HEADER
        self._keep_frames = keep_frames

    def run(self) -> bytes:
        self._function()
        return bytes(self._data)

    def _number(self) -> int:
        (value,) = self._int.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def _text(self) -> bytes:
        (length,) = self._size.unpack_from(self._data, self._at)
        self._at += self._size.size
        found = bytes(self._data[self._at : self._at + length])
        self._at += length
        return found

    def _function(self) -> None:
        self._text()
        self._at += 8  # skips the first and the last line
        self._at += 4  # skips the numbers of upvalues and parameters, the vararg flag and the stack size
        code = self._at + 4
        count = self._number()
        self._at += 4 * count
        self._constants()
        self._untail(code, count)
        for _ in range(self._number()):
            self._function()
        self._debug()

    def _constants(self) -> None:
        for _ in range(self._number()):
            kind = self._data[self._at]
            self._at += 1
            if kind == 4:
                self._text()
            else:
                self._at += {0: 0, 1: 1, 3: 8}[kind]

    def _debug(self) -> None:
        lines = self._number()
        self._at += 4 * lines
        for _ in range(self._number()):
            self._text()
            self._at += 8
        for _ in range(self._number()):
            self._text()

    def _untail(self, place: int, count: int) -> None:
        code = array("I", self._data[place : place + 4 * count])
        if (self._order == "<") != (array("H", [1]).tobytes()[0] == 1):
            code.byteswap()
        is_count = False
        for at, word in enumerate(code):
            kind = -1 if is_count else word & 0x3F
            is_count = kind == _SETLIST and not word >> 14 & 0x1FF  # the next instruction is a number
            if kind == _TAILCALL and (self._keep_frames or _calls_library(code, at)):
                struct.pack_into(self._order + "I", self._data, place + 4 * at, word - _TAILCALL + _CALL)


def _calls_library(code: "array[int]", at: int) -> bool:
    """True if the called function may be a library's: all but upvalues and fields of the script's own tables.

    A script's own functions call themselves and each other by these. Their tail calls may repeat without end and must
    not fill the stack, so they do not change. Scripts have no globals of their own.
    """
    register = code[at] >> 6 & 0xFF
    for before in range(at - 1, -1, -1):
        word = code[before]
        if word >> 6 & 0xFF == register and word & 0x3F in _SETS:
            break
    else:
        return False
    kind = word & 0x3F
    if kind == _GETTABLE and before:
        table, previous = word >> 23, code[before - 1]
        return previous & 0x3F == _GETGLOBAL and previous >> 6 & 0xFF == table
    return kind not in {_GETTABLE, _GETUPVAL}
