"""Record the fixture of a version: its stored data, which later versions must read and continue.

``.venv/bin/python scripts/record_fixture.py`` replaces ``tests/fixtures/VERSION`` in a minute. It needs Java. The
ids, names and times are fixed, and so is the content. Random names differ from one recording to the next.

::

    data/         data directory of a server: all kinds of values, a snapshot and later records, a Spark query's commits
    backup/       backup of it, made before the later records
    checkpoint/   checkpoint of that query, killed between the sink's commit and Spark's
    archive/      archive of its stream
    worker/       data directory with the keys of a worker that was killed at work
    data.json     replies to the commands of tests/compatibility/content.py, by key; of the backup in backup.json
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from compatibility import content, shop  # noqa: E402 - found by the line above
from millstream import __version__  # noqa: E402
from millstream.clock import ManualClock  # noqa: E402
from millstream.server.thread import ServerThread  # noqa: E402
from support.clock import Ahead  # noqa: E402
from support.waiting import eventually  # noqa: E402
from support.wire import Wire  # noqa: E402

MOST_BYTES = 300_000
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def query(url: str, checkpoint: str) -> None:
    """Copy the stream once with Spark, in three batches or the remaining ones."""
    from millstream.spark import session  # noqa: PLC0415 - one process of the recording needs Spark

    spark = session("fixture", quick=True)
    content.copying(spark, url, checkpoint).awaitTermination()
    spark.stop()


def run(*words: str | Path) -> None:
    """Run a program to its end; a failure ends the recording."""
    subprocess.run([*map(str, words)], check=True, stdout=subprocess.DEVNULL)


def record_data(folder: Path) -> None:
    """Record ``data``, ``backup``, ``checkpoint`` and ``archive``."""
    expected: dict[str, dict[str, Any]] = {}
    with ServerThread(folder / "data", clock=ManualClock(content.BEGIN_MS)) as server, Wire(server.url) as wire:
        content.run(wire, content.first_commands())
        assert wire.ask("BGREWRITEAOF")
        eventually(lambda: b"aof_rewrite_in_progress:0" in wire.ask("INFO", "persistence"), what="the snapshot is made")
        run(MILLSTREAM, "backup", server.url, folder / "backup")
        expected["backup"] = content.content(wire)
        content.run(wire, content.later_commands())
        run(sys.executable, __file__, "--query", server.url, folder / "checkpoint")
        expected["data"] = content.content(wire)
        run(MILLSTREAM, "archive", server.url, content.STREAM, "--to", folder / "archive", "--once", "--no-trim")
    commits = folder / "checkpoint/commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    for name, keys in expected.items():
        rows = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in keys.items()
        )
        (folder / f"{name}.json").write_text(f"{{\n{rows}\n}}\n")


def record_worker(folder: Path) -> None:
    """Record ``worker``: its process is killed in the state that the test continues from."""
    with ServerThread(folder / "worker", clock=Ahead(content.BEGIN_MS)) as server, Wire(server.url) as wire:
        run(MILLSTREAM, "worker", "pause", "--ahead", shop.STREAM, "mailing", "--reason", "recorded", "--by", "fixture",
            "--url", server.url)  # fmt: skip
        for number, does in enumerate(shop.DOES, 1):
            wire.ask("XADD", shop.STREAM, shop.entry_id(number), "name", f"{number} {does}", "do", does)
        words = [sys.executable, "-m", "compatibility.shop", server.url, str(content.BEGIN_MS)]
        with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}) as worker:
            try:
                eventually(lambda: shop.is_recorded(wire), what="the worker is at work")
                first, second = [letter.decode() for letter, _ in wire.ask("XRANGE", shop.DEAD, "-", "+")]
                run(MILLSTREAM, "dead", "retry", shop.STREAM, second, "--url", server.url)
                eventually(lambda: shop.is_recorded(wire), what="the entry that was put back is dead again")
            finally:
                worker.kill()
        run(MILLSTREAM, "dead", "retry", shop.STREAM, first, "--url", server.url)
        wire.ask("XADD", shop.STREAM, f"{content.BEGIN_MS * 2}-0", "name", "unread", "do", "work")


def main() -> None:
    """Record all parts in a separate folder, then move them into place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--query", nargs=2, metavar=("URL", "CHECKPOINT"), help="run the recorded query only")
    if given := parser.parse_args().query:
        query(*given)
        return
    target = ROOT / "tests/fixtures" / __version__
    with tempfile.TemporaryDirectory(prefix="millstream-fixture-") as work:
        folder = Path(work, __version__)
        folder.mkdir()
        record_data(folder)
        record_worker(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if size > MOST_BYTES:
            raise SystemExit(f"The fixture is {size} bytes, more than {MOST_BYTES}: record less.")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    print(f"{target.relative_to(ROOT)}: {size} bytes")


if __name__ == "__main__":
    main()
