"""A reader who follows a page of the documents, with its commands as printed."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.source import ROOT

BIN = Path(sys.executable).parent


def line(holding: str, page: str) -> str:
    """Return the page's one shell line that contains the text."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    (found,) = [one for text in blocks for one in text.splitlines() if holding in one]
    return found


class Reader:
    """A reader who follows a page in a separate folder.

    Args:
        folder: Folder to work in.
        url: URL of the started server.
        extra: Further environment variables.
    """

    def __init__(self, folder: Path, url: str, **extra: str) -> None:
        self.folder = folder
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"MILLSTREAM_URL": url, "PATH": path, "PYTHONPATH": str(folder)} | extra

    def types(self, command: str) -> str:
        """Run a command that must succeed; return its output."""
        done = self.tries(command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tries(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command; return its result."""
        words = self._words(command)
        return subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)

    @contextlib.contextmanager
    def runs(self, command: str, name: str = "run.log") -> Iterator[Path]:
        """Run a program in the background and yield its log; SIGTERM must end it with exit code 0.

        Args:
            command: Command as printed.
            name: Name of the log in the folder.
        """
        with self.starts(command, name) as (running, log):
            yield log
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=30) == 0, log.read_text()

    @contextlib.contextmanager
    def starts(self, command: str, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Yield a background program, killed at the end, and its log.

        Args:
            command: Command as printed.
            name: Name of the log in the folder.
        """
        log = self.folder / name
        with log.open("wb") as out:
            running = subprocess.Popen(
                self._words(command), cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
            try:
                yield running, log
            finally:
                if running.poll() is None:
                    running.kill()
                    running.wait()

    def _words(self, command: str) -> list[str]:
        words = shlex.split(command)
        words[0] = str(BIN / words[0])
        return words
