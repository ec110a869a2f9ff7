"""A real worker whose handler, stream and group have hostile names: no page writes them as markup or as controls."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis

from millstream.server.thread import ServerThread
from millstream.worker.registry import protocol
from support.console import ConsoleThread
from support.needs import lacking, package
from support.waiting import eventually

MARK = "<img src=x onerror=document.title='run'>"
CONTROLS = "\u202e\u2066\u200f\x1b[2J\x07\r\n"
NAME = f"\"'{MARK}</script>{CONTROLS}"
"""A name with markup, and with characters that turn the writing or move a cursor."""

APP = """
import asyncio
from millstream import App, Retry, StreamSub
app = App()

async def handle(n: int) -> None:
    if n == 1:
        raise ValueError(NAME)
    if n == 2:
        await asyncio.sleep(3600)

handle.__name__ = handle.__qualname__ = NAME
app.subscriber(StreamSub(NAME, group=NAME, consumer=NAME), retry=Retry(max_deliveries=1))(handle)
"""
PATHS = (
    "/", "/handlers", "/workers", "/server", "/dead", "/alerts", "/changes", "/search?q=img",
    f"/stream?{urlencode({'key': NAME})}",
    f"/group?{urlencode({'key': NAME, 'group': NAME})}",
    f"/handlers?{urlencode({'key': NAME, 'group': NAME, 'handler': NAME})}",
    f"/dead?{urlencode({'key': NAME + ':dead'})}",
)  # fmt: skip


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleThread]:
    """A console over a server with such a worker, which processes one entry and has failed with another."""
    folder: Path = tmp_path_factory.mktemp("app")
    (folder / "hostile.py").write_text(f"NAME = {NAME!r}\n{APP}")
    with ServerThread() as server, redis.Redis.from_url(server.url) as client:
        worker = subprocess.Popen(
            [sys.executable, "-m", "millstream.worker.child", "hostile:app"],
            cwd=folder,
            env={**os.environ, "MILLSTREAM_URL": server.url},
            stdin=subprocess.DEVNULL,
        )
        try:
            client.xgroup_create(NAME, NAME, id="0", mkstream=True)
            for number in (1, 2):
                client.xadd(NAME, {"n": number, NAME: NAME})
            eventually(lambda: _failed(client), what="the worker reports a dead letter and a running entry")
            with ConsoleThread(server.url, allow_changes=True) as found:
                yield found
        finally:
            worker.kill()
            worker.wait()


def _failed(client: Any) -> bool:
    records = [client.get(protocol.worker_key(one.decode())) for one in client.zrange(protocol.INDEX, 0, -1)]
    subs = [sub for record in records if record for sub in json.loads(record)["subscribers"]]
    return any(sub["handler"] == NAME and sub["dead"] and sub["jobs"] for sub in subs)


@pytest.mark.parametrize("path", PATHS)
def test_no_page_writes_a_hostile_name_as_it_is(console: ConsoleThread, path: str) -> None:
    """The names are escaped as text and in attributes, and no character of them can turn or hide other text."""
    reply = console.ask(path)
    assert reply.status in {200, 303}
    assert MARK not in reply.text
    assert re.findall("[\u202a-\u202e\u2066-\u2069\u200e\u200f\x1b\x07\r]", reply.text) == []


def test_a_browser_runs_nothing_of_a_hostile_name(console: ConsoleThread) -> None:
    """No page shows an element of the names, sends a request for one, or runs its script."""
    api = package("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("no chromium on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page()
        for path in PATHS:
            page.goto(console.address + path)
            assert (page.locator("img").count(), page.title() == "run") == (0, False), path
        page.goto(console.address + PATHS[1])
        assert "onerror" in page.locator("tbody th").first.inner_text()
        browser.close()
