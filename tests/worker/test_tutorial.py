"""The worker's tutorial, from its first order to the letter put back: its programs and commands, as printed."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.readme import block
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

PAGE = "docs/worker/tutorial.md"
BIN = Path(sys.executable).parent
MILK = '    if item == "milk":\n        raise RuntimeError("the dairy does not answer")\n'


def line(holding: str) -> str:
    """The page's one line of shell that holds these words."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", (ROOT / PAGE).read_text(), flags=re.DOTALL)
    (found,) = [one for text in blocks for one in text.splitlines() if holding in one]
    return found


class Reader:
    """Somebody who follows the page in a folder of their own.

    Args:
        folder: in which they work.
        url: of the server that they have started.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = os.environ | {"MILLSTREAM_URL": url, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    def types(self, command: str) -> str:
        """What a command prints; it succeeds."""
        words = shlex.split(command)
        words[0] = str(BIN / words[0])
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def runs(self, command: str) -> Iterator[Path]:
        """The workers of ``millstream run``, and their log; SIGTERM ends them with exit code 0."""
        words = shlex.split(command)
        words[0] = str(BIN / words[0])
        log = self.folder / "run.log"
        with log.open("wb") as out:
            running = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=out, stderr=out)
            try:
                yield log
                running.send_signal(signal.SIGTERM)
                assert running.wait(timeout=30) == 0, log.read_text()
            finally:
                if running.poll() is None:
                    running.kill()
                    running.wait()


def test_a_newcomer_gets_from_the_top_to_the_letter_put_back(our_server: ServerProcess, tmp_path: Path) -> None:
    """What the page says is printed, and handled, dead, mended and put back, is."""
    reader = Reader(tmp_path, our_server.url)
    program = block("python", "# shop.py", page=PAGE)
    assert MILK in program
    (tmp_path / "shop.py").write_text(program)
    with our_server.client() as client:
        with reader.runs("millstream run shop:app") as log:
            reader.types(line('"price": 3.5'))
            eventually(lambda: "billing tea: 3.50 (delivery 1)" in log.read_text(), 30, what="the tea is billed")
            reader.types(line('"milk"'))
            reader.types(line('"much"'))
            eventually(lambda: client.xlen("orders:dead") == 2, 30, what="both are dead letters")

        letters = json.loads(reader.types(line("millstream dead ls") + " -o json"))
        reasons = {letter["reason"]: letter for letter in letters}
        assert "could not convert string to float" in reasons["invalid"]["error"]
        milk = reasons["error"]["id"]
        assert "the dairy does not answer" in reader.types(line("dead show").replace("1763721600000-0", milk))

        (tmp_path / "shop.py").write_text(program.replace(MILK, ""))
        reader.types(line("dead retry").replace("1763721600000-0", milk) + " --yes")
        with reader.runs(line("--workers 2")) as log:
            eventually(lambda: "billing milk: 1.20 (delivery 1)" in log.read_text(), 30, what="the milk is billed")
            assert client.xlen("orders:dead") == 1
