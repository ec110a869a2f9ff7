"""Every Python block in the documents runs up to its registration."""

import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from support.readme import block

ROOT = Path(__file__).parents[2]

#: The names at hand for a reader who copies a block that shows only a part of a program.
AROUND = """
from collections.abc import AsyncIterator
from typing import Annotated, Any
from datetime import UTC, datetime
from millstream import App, BatchError, Depends, Fire, JobCancelledError, Message, Middleware, Retry, StreamSub
from millstream import Timeout, once
from millstream.worker.middlewares.logging import LogContext
from millstream.worker.middlewares.tracing import Tracing
Order = dict
Session = Any
app = App()
"""


def blocks() -> list[Any]:
    """Return every Python block by document and number."""
    found = []
    worker = sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs/worker").glob("*.md"))
    for name in ("README.md", *worker, "docs/from-faststream.md"):
        texts = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
        found += [
            pytest.param(text, id=f"{name}-{at}") for at, text in enumerate(texts) if "spark.readStream" not in text
        ]
    return found


@pytest.mark.parametrize("text", blocks())
def test_a_block_of_python_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python block in the documents uses existing options and names."""
    monkeypatch.chdir(tmp_path)
    if "from shop import app" in text:  # a test beside the tutorial's program, which it imports
        (tmp_path / "shop.py").write_text(block("python", "# shop.py", page="docs/worker/tutorial.md"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "shop", raising=False)
    whole = "app = App(" in text or "app = FastStream(" in text
    code = text if whole and "import" in text else AROUND + text
    names: dict[str, Any] = {"__name__": "document"}
    exec(compile(code, "document", "exec"), names)
    for connection in (value for value in names.values() if isinstance(value, sqlite3.Connection)):
        connection.close()  # in a program it lives as long as the process
