"""Code blocks of the README, for tests that run them as printed."""

import re

from support.source import ROOT


def block(language: str, holding: str) -> str:
    """The README's one code block of this language that holds these words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return found
