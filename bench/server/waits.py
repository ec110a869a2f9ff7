"""Waiting times of clients: replies at half of Redis's peak, and a thousand blocked readers that one entry wakes."""

import contextlib
import select
import socket
import time

from bench.server.cases import FIELDS, stream
from bench.server.load import Measured, pack, send
from bench.server.servers import REDIS, Server, all_started
from bench.server.turns import Effort, Rounds, say

READERS, CLIENTS = 1000, 50
PACED = {
    "XADD": [pack("XADD", "s", "*", *FIELDS)],
    "GET": [pack("GET", "k")],
    "XRANGE COUNT 100": [pack("XRANGE", "s", f"{at}-1", "+", "COUNT", 100) for at in range(1, 900)],
}


def at_half_of_peak(effort: Effort) -> dict[str, Rounds]:
    """Return the reply times of each command at half the peak rate of redis-server with 50 clients.

    A server that does not keep up is stopped after twice the time, and its figures show that.
    """
    found: dict[str, Rounds] = {}
    with all_started() as servers:
        first = next(server for server in servers if server.name == REDIS)
        for name, commands in PACED.items():
            for server in servers:
                server.client.flushall()
                send(server, stream(entries=1000))
                server.client.set("k", "value")
            send(first, commands, total=5000, clients=CLIENTS, pipeline=1)
            half = send(first, commands, total=30_000, clients=CLIENTS, pipeline=1).rate / 2
            rounds: Rounds = {server.name: [] for server in servers}
            seconds = max(2 * effort.seconds, 1)
            for _ in range(effort.rounds):
                for server in servers:
                    total, most = int(half * seconds), 2 * seconds
                    told = send(server, commands, total=total, clients=CLIENTS, rate=half, patience=most)
                    rounds[server.name].append(told.record())
            found[name] = rounds
            say(f"{name} at half of Redis's peak", rounds)
    return found


def woken(effort: Effort) -> Rounds:
    """Measure readers blocked in XREAD that one XADD wakes: the number per second, and the server's time for each."""
    with all_started() as servers:
        rounds: Rounds = {server.name: [] for server in servers}
        for server in servers:
            _wake(server)  # the first loads what it needs
        for _ in range(2 * effort.rounds):
            for server in servers:
                rounds[server.name].append(_wake(server).record())
        say(f"{READERS} blocked readers woken", rounds)
        return rounds


def _wake(server: Server) -> Measured:
    server.client.delete("s")
    with contextlib.ExitStack() as stack:
        waiting = {}
        poll = select.poll()
        for _ in range(READERS):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            line.sendall(pack("XREAD", "BLOCK", 0, "STREAMS", "s", "$"))
            waiting[line.fileno()] = line
            poll.register(line, select.POLLIN)
        while server.client.info("clients")["blocked_clients"] < READERS:
            time.sleep(0.01)  # a server tells only those who ask
        before, began = server.clock(), time.perf_counter()
        server.client.execute_command("XADD", "s", "*", *FIELDS)
        while waiting:
            for number, _ in poll.poll():
                poll.unregister(waiting[number])
                assert waiting.pop(number).recv(4096).startswith(b"*1\r\n")
        spent, took = server.clock() - before, time.perf_counter() - began
    return Measured(READERS / took, spent / READERS * 1e6)
