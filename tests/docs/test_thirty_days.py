"""``docs/how-to/thirty-days.md``: its server and every command run as printed, with events of thirty days."""

import re
import shlex
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.test_how_to import TIER_PAGE
from millstream.cli.main import main
from support.coldness import IS_COLD
from support.ports import free_port
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its server has packs of its own", allow_module_level=True)

DAY_MS = 86_400_000
COUNT = 20_000
TRIAL = 50_000  # Events that the page adds


def commands() -> list[str]:
    """Return every line of the page's shell blocks."""
    found = re.findall(r"```sh\n(.*?)```", (ROOT / TIER_PAGE).read_text(), re.DOTALL)
    return [line for text in found for line in text.splitlines()]


def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of 29 days stay and most of them go to packs, older ones are removed, and each command shows something."""
    monkeypatch.chdir(tmp_path)
    serve, *others = commands()
    port = free_port()
    words = [
        str(Path(sys.executable).with_name("millstream")),
        *shlex.split(serve)[1:],
        "--port",
        str(port),
        "--set",
        "tier-hot=256kb",
    ]
    begin = time.time_ns() // 1_000_000 - 29 * DAY_MS
    with ServerProcess(words, port, tmp_path / "server.out") as server, Wire(server.url) as wire:
        wire.ask("XADD", "orders", f"{begin - 10 * DAY_MS}-0", "item", "old")
        added = [("XADD", "orders", f"{begin + each * 100}-0", "item", "tea", "pad", "x" * 60) for each in range(COUNT)]
        assert all(isinstance(each, bytes) for each in wire.ask_together(added))

        def cold() -> int:
            rows = dict(line.split(":", 1) for line in wire.ask("INFO", "tier").decode().splitlines() if ":" in line)
            return int(rows["tier_entries"])

        eventually(lambda: cold() > COUNT // 2, what="events are in packs")
        (trial,) = re.findall(r"```python\n(.*?)```", (ROOT / TIER_PAGE).read_text(), re.DOTALL)
        exec(trial.replace("redis://127.0.0.1:6379", server.url), {})
        eventually(lambda: cold() > COUNT + TRIAL // 2, what="events of the page are in packs")
        runner = CliRunner(env={"MILLSTREAM_URL": server.url})
        for line in others:
            words = shlex.split(line)
            assert words[0] == "millstream"
            done = runner.invoke(main, words[1:])
            assert done.exit_code == 0 or words[1] == "doctor", f"{line}\n{done.output}"
            assert done.output
        assert wire.ask("XLEN", "orders") == COUNT + TRIAL + 1
        oldest = runner.invoke(main, ["stream", "tail", "orders", "--oldest", "-n", "1", "-o", "jsonl"]).output
        assert f'"id": "{begin}-0"' in oldest
        assert "tier entries" in runner.invoke(main, ["server", "show"]).output
    assert list((tmp_path / "copy").glob("*.pack"))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "data").glob("*.pack"))
