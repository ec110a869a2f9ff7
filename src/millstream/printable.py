"""Text of others on a terminal or in a log. A leaf: every part may use it.

What an exception, an entry or a server says may hold anything: an ESC that moves the cursor or hides a line, a BEL,
marks that turn the direction of writing.
"""


def printable(text: str) -> str:
    """Text that cannot move a terminal's cursor or end its line: what is no printable character is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
