"""The tutorial: its programs and commands as printed, from the first order to the replayed dead letters."""

import json
import os
import re
import signal
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from support import reader as readers
from support.ports import free_port
from support.reader import Reader
from support.readme import block
from support.servers import ServerProcess
from support.waiting import eventually

PAGE = "docs/tutorial.md"
MILK = '    if item == "milk":\n        raise RuntimeError("the dairy does not answer")\n'
line = partial(readers.line, page=PAGE)
RUN = line("millstream run")


def asked(url: str) -> Any:
    """Return the data of a console page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def groups(url: str) -> set[str]:
    """Return the names of the groups on the first page."""
    return {group["group"] for stream in asked(url)["streams"] for group in stream["groups"]}


def workers(reader: Reader) -> set[int]:
    """Return the process ids of the running workers."""
    return {
        int(row["id"].split("-")[-2]) for row in json.loads(reader.types("millstream worker ls -o json"))["workers"]
    }


def test_a_newcomer_sees_it_live_and_puts_back_what_failed(our_server: ServerProcess, tmp_path: Path) -> None:
    """In the tutorial, the console shows orders, a killed worker's are taken over, and a dead letter is put back."""
    reader = Reader(tmp_path, our_server.url)
    program = block("python", "# shop.py", page=PAGE)
    assert MILK in program
    (tmp_path / "shop.py").write_text(program)
    (tmp_path / "customers.py").write_text(block("python", "# customers.py", page=PAGE))
    console = f"{line('--allow-changes')} --port {free_port()}"
    with our_server.client() as client:
        with (
            reader.starts(line("python customers.py"), "customers.log") as (shop, printed),
            reader.starts(console, "console.log") as (_, said),
            reader.runs(RUN),
        ):
            page = eventually(lambda: re.findall(r"ready (http\S+)/", said.read_text())[0], what="the console is ready")
            eventually(lambda: groups(f"{page}/overview.json") == {"billing", "statistics"}, what="both are shown")
            before = eventually(lambda: len(workers(reader)) == 2 and workers(reader), what="two workers are alive")
            assert isinstance(before, set)
            os.kill(victim := min(before), signal.SIGKILL)
            eventually(lambda: len(workers(reader) - {victim}) == 2, what="another process was started")
            for _ in range(3):
                client.xadd("orders", {"item": "milk", "price": "1.2"})
            eventually(lambda: client.xlen("orders:dead") >= 3, what="the milk is dead")
            assert "the dairy does not answer" in reader.types(line("dead ls"))
            assert "claimed" in reader.types(line("group show")) or client.xlen("orders") > 3
            shop.send_signal(signal.SIGINT)  # Ctrl-C, as the page says at its end
            assert (shop.wait(timeout=30), printed.read_text()) == (0, "")
        (tmp_path / "shop.py").write_text(program.replace(MILK, ""))
        with reader.runs(RUN):
            reader.types(line("dead retry"))
            assert client.xlen("orders:dead") == 0
            assert reader.types(line("group ls"))
            assert reader.types(line("group rewind"))
            assert reader.tries(line("millstream check")).returncode in {0, 1, 2}
