"""Text of others on a terminal or in a log. A leaf: every part may use it.

What an exception, an entry or a server says may hold anything: an ESC that moves the cursor or hides a line, a BEL,
marks that turn the direction of writing.
"""

import re

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def printable(text: str) -> str:
    r"""Text that cannot move a terminal's cursor: what is no printable character is escaped; the ends of lines stay.

    Bytes that came into the text as what they are (``surrogateescape``) are shown as bytes, ``\xff``.
    """
    if text.isprintable():
        return text
    text = _ESCAPED_BYTE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", text)
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
