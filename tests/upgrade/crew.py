"""Worker processes of both versions on one server, killed and replaced, and what their entries came to."""

import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from support.versions import Version

APP = Path(__file__).with_name("app.py")

RUNS = {"ok": 1, "brief": 1, "once": 1, "slow": 1, "reject": 1, "flaky": 2, "error": 3, "nack": 3}
"""How often an entry of each kind is run by workers that nobody kills."""

DEAD = {"reject": "reject", "error": "error", "nack": "nack", "poison": "overdue"}
"""The reason of the letter that an entry of each kind ends as; the others are acknowledged."""


class Crew:
    """The workers of one server.

    Args:
        url: of the server.
        versions: by name.
        folder: for their output.
        variables: what the app is told.

    Attributes:
        variables: what workers that are started from now on are told.
    """

    def __init__(self, url: str, versions: Mapping[str, Version], folder: Path, **variables: str) -> None:
        self._versions = versions
        self.variables = {"MIN_IDLE": "400", "SLOW": "0", "MILLSTREAM_URL": url, **variables}
        self._folder = folder
        self.at_work: list[tuple[str, subprocess.Popen[bytes]]] = []
        #: processes that did not end by themselves: what they had in hand may run again
        self.crashed: set[int] = set()

    def hire(self, name: str) -> "subprocess.Popen[bytes]":
        """Start a worker of a version."""
        version = self._versions[name]
        with (self._folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                version.python(str(APP)),
                env=version.environment(**self.variables),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.at_work.append((name, process))
        return process

    def kill(self, name: str) -> None:
        """Kill the worker of that version that has been at work longest."""
        process = self._take(name)
        process.kill()
        process.wait(timeout=30)
        self.crashed.add(process.pid)

    def retire(self, name: str) -> int:
        """Stop one as a service manager does; its exit code."""
        process = self._take(name)
        process.terminate()
        return process.wait(timeout=60)

    def _take(self, name: str) -> "subprocess.Popen[bytes]":
        (found, *_) = [each for each in self.at_work if each[0] == name]
        self.at_work.remove(found)
        return found[1]

    def relieve(self) -> None:
        """Start one of the other version for each that an entry has killed."""
        for name, process in list(self.at_work):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL, (self._folder / f"{name}.out").read_text()
                self.at_work.remove((name, process))
                self.crashed.add(process.pid)
                self.hire("new" if name == "old" else "old")

    def dismiss(self) -> None:
        """Kill whoever is left."""
        for _, process in self.at_work:
            process.kill()
            process.wait(timeout=30)


def publish(client: redis.Redis, kinds: Mapping[str, int], first: int) -> dict[int, str]:
    """Entries of these kinds, in turns; number -> kind."""
    left, made = Counter(kinds), {}
    while +left:
        for kind in sorted(+left):
            left[kind] -= 1
            made[first + len(made)] = kind
    with client.pipeline(transaction=False) as pipe:
        for number, kind in made.items():
            pipe.xadd("orders", {"n": str(number), "kind": kind})
        pipe.execute()
    return made


def runs(client: redis.Redis) -> list[tuple[int, str, int]]:
    """Every run: the entry's number, the version, the process."""
    rows: Any = client.xrange("effects")
    return [(int(each["n"]), each["version"], int(each["pid"])) for _, each in rows]


def check(client: redis.Redis, made: Mapping[int, str], crashed: set[int]) -> None:
    """Nothing lost, nothing run more than a crash explains, each dead letter and each effect of ``once`` there once."""
    seen = runs(client)
    assert {number for number, _, _ in seen} == set(made), "an entry was lost"
    unhurt = Counter(number for number, _, pid in seen if pid not in crashed)
    if crashed:
        # One more than asked for: leases are short here, and a machine that is busy may let one lapse.
        too_many = {n: (kind, unhurt[n]) for n, kind in made.items() if unhurt[n] > RUNS.get(kind, 0) + 1}
        assert too_many == {}, "run again though nobody crashed with it"
    else:
        assert dict(unhurt) == {n: RUNS[kind] for n, kind in made.items()}
    letters: Any = client.xrange("orders:dead")
    assert Counter((int(each["n"]), each["_dead.reason"]) for _, each in letters) == Counter(
        (number, DEAD[kind]) for number, kind in made.items() if kind in DEAD
    )
    bills: Any = client.xrange("orders:bills")
    assert sorted(int(each["n"]) for _, each in bills) == sorted(n for n, kind in made.items() if kind == "once")
    rows: Any = client.hgetall("millstream:{orders}:tries:billing")
    assert rows == {}, "a record of failures was left behind"
