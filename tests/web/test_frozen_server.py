"""A server that is frozen: it keeps its connections open and answers nothing. Pages answer all the same."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from millstream.ops.watching import watch
from support.console import ConsoleThread
from support.servers import millstream_server
from support.waiting import eventually

pytestmark = pytest.mark.realserver

PATHS = (
    "/", "/stream?key=orders", "/group?key=orders&group=billing", "/entry?key=orders&id=1-0", "/server", "/search?q=o",
    "/workers", "/dead", "/spark", "/change?do=group+rm&key=orders&group=billing",
    "/change?do=group+rewind&key=orders&group=billing&to=start",
)  # fmt: skip


def silent(console: ConsoleThread, path: str, *, wanted: bool = True) -> bool:
    """A page reports, or no longer reports, that the server does not answer."""
    return ("does not answer" in console.ask(path).text) == wanted


def test_every_page_answers_while_the_server_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded time, with which server does not answer and what to do; what was read before is shown with its age.

    Once the server goes on, so do the pages.
    """
    monkeypatch.setattr(watch, "LONGEST", 0.3)
    monkeypatch.setattr(watch, "_AGAIN", 0.1)
    with millstream_server(tmp_path, "--memory") as server, ConsoleThread(server.url, allow_changes=True) as console:
        assert server.process is not None
        with server.client() as client:
            client.xadd("orders", {"n": 1}, id="1-0")
            client.xgroup_create("orders", "billing", id="0")
        assert console.ask("/stream?key=orders").status == 200
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            for path in PATHS:
                # a reading of a moment ago is good enough
                eventually(partial(silent, console, path))
                assert server.url.removeprefix("redis://").removesuffix("/0") in console.ask(path).text
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        for path in PATHS:
            eventually(partial(silent, console, path, wanted=False))
