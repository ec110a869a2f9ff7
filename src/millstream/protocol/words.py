"""Splitting an inline command into words, by the quoting rules a person typing at a socket knows from Redis."""

_BLANK = frozenset(b" \n\r\t\v\f")
_END_OF_WORD = frozenset(b" \n\r\t")
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DOUBLE, _SINGLE, _BACKSLASH, _X = ord('"'), ord("'"), ord("\\"), ord("x")


def split_words(line: bytes) -> list[bytes] | None:
    r"""The words of a line, or None if its quotes do not balance.

    Double quotes know ``\\n \\r \\t \\b \\a \\xHH``, single quotes only ``\\'``. A closing quote must be followed by a
    blank or the end. What follows a NUL byte is not seen, as in Redis.
    """
    line = line.partition(b"\0")[0]
    if _DOUBLE not in line and _SINGLE not in line:
        return line.split()
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at] in _BLANK:
            at += 1
        if at == end:
            return words
        word = bytearray()
        moved = _word(line, at, word)
        if moved is None:
            return None
        at = moved
        words.append(bytes(word))


def _word(line: bytes, at: int, word: bytearray) -> int | None:
    """Read one word, which may begin or end with a quoted part; returns where it ends, None if unbalanced."""
    end = len(line)
    while at < end and line[at] not in _END_OF_WORD:
        if line[at] == _DOUBLE:
            return _double(line, at + 1, word)
        if line[at] == _SINGLE:
            return _single(line, at + 1, word)
        word.append(line[at])
        at += 1
    return at


def _double(line: bytes, at: int, word: bytearray) -> int | None:
    end = len(line)
    while at < end:
        char = line[at]
        if char == _BACKSLASH and at + 3 < end and line[at + 1] == _X and {*line[at + 2 : at + 4]} <= _HEX:
            word.append(int(line[at + 2 : at + 4], 16))
            at += 4
        elif char == _BACKSLASH and at + 1 < end:
            word.append(_ESCAPES.get(line[at + 1], line[at + 1]))
            at += 2
        elif char == _DOUBLE:
            return _closed(line, at + 1)
        else:
            word.append(char)
            at += 1
    return None


def _single(line: bytes, at: int, word: bytearray) -> int | None:
    end = len(line)
    while at < end:
        char = line[at]
        if char == _BACKSLASH and at + 1 < end and line[at + 1] == _SINGLE:
            word.append(_SINGLE)
            at += 2
        elif char == _SINGLE:
            return _closed(line, at + 1)
        else:
            word.append(char)
            at += 1
    return None


def _closed(line: bytes, at: int) -> int | None:
    return at if at == len(line) or line[at] in _BLANK else None
