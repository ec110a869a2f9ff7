"""Version 0.1 beside the present one: its own source, unpacked from a fixture, at work in processes of its own.

The source is kept as a fixture so that a clean clone has it without the history. It is found through ``PYTHONPATH``,
which comes before what is installed; everything else, Redis's client and Spark for example, both versions share.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner, Result

from support.ports import free_port
from support.servers import ServerProcess

TESTS = Path(__file__).parents[1]
"""On the path of every process, behind 0.1: the app of these tests uses ``support``."""

FIXTURES = TESTS / "upgrade" / "fixtures"
"""What version 0.1 left behind; ``tests/upgrade/record.py`` makes it."""

SOURCE = FIXTURES / "millstream-0.1.tar.xz"
"""The source of version 0.1, without caches."""

# Not the installed script: it imports what the present version calls its entry point.
_OLD_ENTRY = "import sys; sys.argv[0] = 'millstream'; from millstream.cli.main import main; main()"


@dataclass(frozen=True)
class Version:
    """One version of Millstream, run in other processes.

    Attributes:
        name: for people, and what the app of these tests writes beside each effect.
        entry: the words that run its command line, before the subcommand.
        variables: what its processes need in their environment.
    """

    name: str
    entry: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a process of this version."""
        return {**os.environ, "VERSION": self.name, **self.variables, **more}

    def python(self, *words: str) -> list[str]:
        """The words that run Python with this version; needs :meth:`environment`."""
        return [sys.executable, *words]

    def cli(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run ``millstream`` and wait for it.

        Args:
            words: the subcommand and what follows it.
            check: fail unless its exit code is 0.
        """
        done = subprocess.run(
            [*self.entry, *words], env=self.environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, f"{words} of {self.name}: {done.stdout}{done.stderr}"
        return done

    def server(self, folder: Path, *options: str, port: int | None = None) -> ServerProcess:
        """A server on ``folder/data``, not started yet.

        Args:
            folder: for its data directory and its output.
            options: more words for ``millstream serve``.
            port: where it listens; a free one unless given.
        """
        port = port or free_port()
        folder.mkdir(parents=True, exist_ok=True)
        # env(1) takes its own place for the program, so signals reach the server
        given = [f"{name}={value}" for name, value in self.variables.items()]
        words = ["env", *given, *self.entry, "serve", "--port", str(port), "--dir", str(folder / "data"), *options]
        return ServerProcess(words, port, folder / f"millstream-{self.name}.out")


def new() -> Version:
    """The present version, as it is installed."""
    return Version("new", (str(Path(sys.executable).with_name("millstream")),), {"PYTHONPATH": str(TESTS)})


def here(*words: str) -> Result:
    """The present version's command line in this process, which is quicker.

    Args:
        words: the subcommand and what follows it.
    """
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="millstream")
    return CliRunner().invoke(entry.load(), list(words))


def old(folder: Path) -> Version:
    """Version 0.1.

    Args:
        folder: its source is unpacked there.
    """
    with tarfile.open(SOURCE) as packed:
        packed.extractall(folder, filter="data")
    return Version("old", (sys.executable, "-c", _OLD_ENTRY), {"PYTHONPATH": f"{folder}{os.pathsep}{TESTS}"})


def unpack(name: str, folder: Path) -> Path:
    """A recorded directory, unpacked: ``folder/name``.

    Args:
        name: of the fixture, without ``.tar.xz``.
        folder: where it goes; what is there already is replaced.
    """
    target = folder / name
    if target.exists():
        shutil.rmtree(target)
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return target


def on_recorded_log(folder: Path) -> ServerProcess:
    """The present server on a copy of the log that 0.1 left behind, not started yet.

    Args:
        folder: for its data directory and its output.
    """
    unpack("log", folder).rename(folder / "data")
    return new().server(folder, "--aclfile", str(FIXTURES / "users.acl"))
