"""Shared helpers: deadlines fail, missing programs skip or fail, ports are distinct, servers are empty."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import needs
from support.ports import Ports, free_port, room
from support.servers import ServerProcess
from support.steps import steps
from support.waiting import aeventually, eventually


def test_eventually_fails_when_the_condition_never_comes() -> None:
    """``eventually`` fails if the condition never becomes true."""
    with pytest.raises(AssertionError, match="the sun rises"):
        eventually(lambda: False, 0.01, what="the sun rises")


async def test_aeventually_waits_for_plain_and_async_probes() -> None:
    """``aeventually`` calls plain and async probes until they are true, and returns their value."""
    answers = [0, 0, 7]

    async def probe() -> int:
        return answers.pop(0)

    assert await aeventually(probe) == 7
    with pytest.raises(AssertionError):
        await aeventually(lambda: 0, 0.01)


@pytest.mark.parametrize("need", [needs.program, needs.package])
def test_what_is_missing_skips_at_home_and_fails_in_ci(
    need: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing requirement skips a test, and fails it under CI."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        need("no_such_thing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        need("no_such_thing")


def test_a_newer_server_is_found_by_variable_by_path_and_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer server is found by the variable, on the path or in the checkout. A set variable always wins."""
    for folder in ("named", "path", "servers"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "redis-server-8"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.delenv("MILLSTREAM_REDIS8", raising=False)
    monkeypatch.setattr(needs, "SERVERS", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert needs.found("redis8") is None
    monkeypatch.setattr(needs, "SERVERS", tmp_path / "servers")
    assert needs.found("redis8") == str(tmp_path / "servers" / "redis-server-8")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert needs.found("redis8") == str(tmp_path / "path" / "redis-server-8")
    monkeypatch.setenv("MILLSTREAM_REDIS8", str(tmp_path / "named" / "redis-server-8"))
    assert needs.found("redis8") == str(tmp_path / "named" / "redis-server-8")
    monkeypatch.setenv("MILLSTREAM_REDIS8", str(tmp_path / "nothing"))
    assert needs.found("redis8") is None


def test_no_test_is_skipped_in_ci_by_pytests_own_way() -> None:
    """No test uses ``importorskip``, which would also skip under CI."""
    own = Path(__file__)
    found = [path.name for path in own.parents[1].rglob("*.py") if path != own and "importorskip" in path.read_text()]
    assert found == []


def test_no_port_is_one_that_a_client_may_be_given() -> None:
    """No port of a test server is in the kernel's range for clients."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert [port for port in (free_port(), free_port()) if first <= port <= last] == []


@pytest.mark.parametrize(
    ("clients", "found"),
    [
        ("32768\t60999\n", range(10_000, 32_768)),
        ("1024 50000", range(50_001, 65_536)),
        ("1024 65535", range(10_000, 65_536)),
        ("", range(10_000, 49_152)),
    ],
)
def test_ports_come_from_outside_the_range_of_clients(tmp_path: Path, clients: str, found: range) -> None:
    """Ports are taken below the range for clients, or above if that is larger, or from anywhere if none is left."""
    (tmp_path / "range").write_text(clients)
    assert room(tmp_path / "range") == found
    assert room(tmp_path / "missing") == range(10_000, 49_152)


def test_no_port_is_handed_out_twice(tmp_path: Path) -> None:
    """Three processes at once get distinct ports."""
    code = "import sys; from pathlib import Path; from support.ports import Ports\n"
    code += "own = Ports(Path(sys.argv[1]), range(20_000, 21_000)); print(*(own.take(2) for _ in range(60)))"
    words = [sys.executable, "-c", code, str(tmp_path / "next")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    asking = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) for _ in range(3)]
    found = [int(port) for process in asking for port in process.communicate(timeout=60)[0].split()]
    assert len(found) == 180
    assert len({port + side for port in found for side in (0, 1)}) == 360


def test_ports_in_use_are_left_out_and_the_range_begins_again(tmp_path: Path) -> None:
    """Ports in use are skipped, and a used range starts over."""
    first = free_port(4)
    ports = Ports(tmp_path / "next", range(first, first + 4))
    (tmp_path / "next").write_text(str(first))
    with socket.create_server(("127.0.0.1", first + 1)):
        assert [ports.take(), ports.take(2), ports.take()] == [first, first + 2, first]
        with pytest.raises(AssertionError, match="no 3 consecutive"):
            ports.take(3)


@pytest.mark.realserver
def test_real_redis_starts_empty(real_redis: ServerProcess) -> None:
    """A shared Redis is empty at the start of a test."""
    with real_redis.client() as client:
        assert client.dbsize() == 0
        client.set("left", "behind")
        client.acl_setuser("left", enabled=True, nopass=True)
        client.config_set("maxmemory-policy", "volatile-ttl")


@pytest.mark.realserver
def test_real_redis_is_as_new_between_tests(real_redis: ServerProcess) -> None:
    """A shared Redis has no key, user or setting of an earlier test."""
    with real_redis.client(decode_responses=True) as client:
        assert client.get("left") is None
        assert client.acl_users() == ["default"]
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


class Lingering:
    """An object that only the collector finds, and whose finalization costs time."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(1000):
            pass


def test_steps_are_those_of_the_act_and_not_of_the_garbage_of_others() -> None:
    """The measured steps of an act do not include the finalization of objects of other tests."""

    def act() -> list[list[int]]:
        return [[number] for number in range(2000)]

    alone = steps(act)
    leftovers = [Lingering() for _ in range(100)]
    leftovers.clear()
    assert steps(act) == alone


@pytest.mark.usefixtures("alone")
def test_alone_no_other_thread_runs() -> None:
    """Under ``alone``, no other thread runs until the end of the block."""
    ran, go, done = [0], threading.Lock(), threading.Event()

    def other() -> None:
        with go:
            ran[0] += 1
        done.set()

    go.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    go.release()  # it is ready to run from here on
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        pass
    seen = ran[0]
    assert done.wait(10)
    thread.join()
    assert (seen, ran[0]) == (0, 1)
