"""Pages answer although the server is frozen: connected, but without replies."""

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
    """Report whether a page's "does not answer" matches the wanted state."""
    return ("does not answer" in console.ask(path).text) == wanted


def test_every_page_answers_while_the_server_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a frozen server each page answers in bounded time with the server's name and a remedy.

    Data read before is shown with its age. Once the server continues, so do the pages.
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
                # a recent reading is reused at first
                eventually(partial(silent, console, path))
                assert server.url.removeprefix("redis://").removesuffix("/0") in console.ask(path).text
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        for path in PATHS:
            eventually(partial(silent, console, path, wanted=False))
