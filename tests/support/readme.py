"""Code blocks of the README and other pages, for tests that run them as printed."""

import re

from support.source import ROOT


def block(language: str, holding: str, *, page: str = "README.md") -> str:
    """Return the page's one code block of this language that contains the text."""
    (found,) = [text for text in blocks(language, page=page) if holding in text]
    return found


def blocks(language: str, *, page: str = "README.md") -> list[str]:
    """Return the page's code blocks of this language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
