"""SQL databases for outbox tests: SQLite in a file, and PostgreSQL and MariaDB servers if installed."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy

from support import needs
from support.ports import free_port
from support.waiting import eventually

NAMES = ("sqlite", "postgresql", "mariadb")
_USERS = {"postgresql": "postgres", "mariadb": "nobody"}
"""Users that the servers run as if the tests run as root."""


class Database:
    """A database and its server."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._command: list[str] = []
        self.user = _USERS.get(name) if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """Return the SQLAlchemy URL."""
        return {
            "sqlite": f"sqlite:///{self.folder}/outbox.sqlite",
            "postgresql": f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres",
            "mariadb": f"mariadb+pymysql://root@127.0.0.1:{self.port}/test",
        }[self.name]

    def engine(self) -> sqlalchemy.Engine:
        """Create an engine."""
        return sqlalchemy.create_engine(self.url, pool_pre_ping=True)

    def begin(self) -> None:
        """Create the data directory and start the server."""
        if self.name == "sqlite":
            return
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        if self.name == "postgresql":
            make = [_program(self.name, "initdb"), "-D", self._data, "-U", "postgres", "--auth=trust", "-N"]
        else:
            make = [_program(self.name, "mariadb-install-db"), "--no-defaults", f"--datadir={self._data}"]
            make.append("--auth-root-authentication-method=normal")
        made = subprocess.run(make, user=self.user, cwd=self.folder, capture_output=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if self.name == "sqlite":
            return
        if self.name == "postgresql":
            program, options = "postgres", ["-D", self._data, "-p", str(self.port), "-h", "127.0.0.1"]
            options += ["-k", str(self.folder)]
        else:
            program, options = "mariadbd", ["--no-defaults", f"--datadir={self._data}", f"--port={self.port}"]
            options += ["--bind-address=127.0.0.1", f"--socket={self.folder}/s"]
            options += ["--innodb-buffer-pool-size=16M", "--character-set-server=latin1"]
        self._command = [_program(self.name, program), *options]
        self._spawn()
        eventually(self._answers, 60, what=f"{self.name} answers")
        if self.name == "mariadb":
            with sqlalchemy.create_engine(self.url.replace("/test", "/")).begin() as connection:
                connection.exec_driver_sql("CREATE DATABASE IF NOT EXISTS test")

    def kill(self) -> None:
        """Kill the server and the processes of its connections, as a machine crash does."""
        if self.process is not None:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            self.process.send_signal(signal.SIGSTOP)  # it starts no further ones
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def end(self) -> None:
        """Stop the server."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT if self.name == "postgresql" else signal.SIGKILL)
            self.process.wait()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _spawn(self) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(self._command, user=self.user, cwd=self.folder, stdout=log, stderr=log)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:  # the processes of a killed server's connections are still there
            self._spawn()
        engine = sqlalchemy.create_engine(self.url.replace("/test", "/"))
        try:
            with engine.connect():
                return True
        except sqlalchemy.exc.OperationalError as error:
            raise LookupError(error) from None
        finally:
            engine.dispose()


@contextmanager
def database(name: str) -> Iterator[Database]:
    """Yield a database for one module. Skip the test if its server or driver is missing."""
    if name != "sqlite":
        needs.package({"postgresql": "psycopg", "mariadb": "pymysql"}[name])
        _program(name, {"postgresql": "postgres", "mariadb": "mariadbd"}[name])
    with tempfile.TemporaryDirectory(prefix="outbox", ignore_cleanup_errors=True) as folder:
        made = Database(name, Path(folder))
        try:
            made.begin()
            yield made
        finally:
            made.end()


def _program(name: str, program: str) -> str:
    """Return the path of a server's program, also in Debian's folder for each version of PostgreSQL."""
    places = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    path = shutil.which(program, path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/sbin"]))
    if path is None:
        # Under CI too: what CI runs on has neither
        pytest.skip(f"no {program}: install {name} for the tests of the outbox")
    return path
