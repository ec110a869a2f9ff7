"""Faults of English that a pattern can find, in docstrings, comments and documents.

A sentence begins with its subject and verb. Three signs of a fault: a relative clause as the subject, a negated noun,
and length.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

from support.source import Module

LONGEST = 30
"""Maximum number of words in a sentence."""

RULES = {
    "opener": re.compile(r"^(?!What to do:)(?:What|Whatever|Who|Whoever|Whose|Whether|Where|How|Of)\b(?!.*\?$)"),
    "is no": re.compile(r"\b(?<![Tt]here )(?:is|are|was|were) no (?!one\b|longer\b|more\b|less\b)\w+"),
}
#: Nearly all comments: the tokenizer would take a minute for the source and the tests.
_COMMENT = re.compile(r"(?:^ *|  )#:? (.*)$", re.MULTILINE)
_CODE = re.compile(r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`|https?://\S+")
_TABLE = re.compile(r"(?:^ *=+(?: +=+)+\n(?:.+\n?)*)+", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\"(])|\n\s*\n|\n\s*[-*|]\s|\n\s*\d+\. ")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, without code and line breaks."""
    for part in _END.split(_CODE.sub("X", text)):
        if sentence := " ".join(part.split()):
            yield sentence


def pieces(text: str) -> Iterator[str]:
    r"""Yield the parts of a docstring that are read as one unit: its prose, and each item of its lists.

    An indented block after an empty line or a colon is a list of arguments, commands or exit codes. The lines at the
    block's own indent begin its items. A paragraph below ``\b`` keeps its lines. Tables, and blocks after ``::``, are
    left out.
    """
    piece: list[str] = []
    block, kept, literal, before = 0, False, False, ""
    for line in _TABLE.sub("", text).splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip() or line.strip(" ") in {"\\b", "\b"}:
            kept = bool(line)
            yield "\n".join(piece)
            piece = []
            continue
        if not indent:
            block, literal = 0, line.endswith("::")
        elif not block and (not piece or before.endswith(":")):
            block = indent
        if kept or (block and indent <= block):
            yield "\n".join(piece)
            piece = []
        if not (block and literal):
            piece.append(line)
        before = line
    yield "\n".join(piece)


def faults_of(text: str) -> Iterator[str]:
    """Yield the name of each fault in a text."""
    for sentence in sentences(text):
        yield from (name for name, rule in RULES.items() if rule.search(sentence))
        if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > LONGEST:
            yield "long"


def _attribute_docstrings(body: list[ast.stmt]) -> Iterator[str]:
    """The docstrings of attributes: strings right after an assignment."""
    for statement, text in pairwise(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            match text:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield cleandoc(docstring)


def of_source(modules: Iterable[Module]) -> Counter[str]:
    """Count the faults in the docstrings and comments of modules."""
    found: Counter[str] = Counter()
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for docstring in [ast.get_docstring(node) or "", *_attribute_docstrings(node.body)]:
                    found.update(fault for piece in pieces(docstring) for fault in faults_of(piece))
        found.update(fault for comment in _COMMENT.findall(module.text) for fault in faults_of(comment))
    return found


def of_pages(pages: Iterable[Path]) -> Counter[str]:
    """Count the faults in documents: their prose, list items, cells of tables and headings."""
    found: Counter[str] = Counter()
    for page in pages:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for block in re.split(r"\n\s*\n|^#+ |\s\|\s|^\|\s", prose, flags=re.MULTILINE):
            found.update(faults_of(block))
    return found
