"""Fill a real, small file system through a server, free some space, continue, and check the data.

Arguments: the mount point of a file system of 16 MiB, the fsync mode, a seed.
"""

import random
import sys
import threading
from pathlib import Path

from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

BALLAST = 3 * 1024 * 1024


class Writer(threading.Thread):
    """Adds entries to a stream of its own until refused, and records the sent and the acknowledged ones.

    Args:
        server: its server.
        name: of its stream.
        chance: for the sizes.
        first: number of its first entry.

    Attributes:
        sent: the number last sent.
        acknowledged: the number last acknowledged.
        refusal: the error that ended it.
    """

    def __init__(self, server: ServerProcess, name: str, chance: random.Random, first: int) -> None:
        super().__init__(daemon=True)
        self._wire = Wire(server.url)
        self._wire.socket.settimeout(300)
        self._chance = chance
        self.name = name
        self.sent = self.acknowledged = first - 1
        self.refusal = ""
        self.start()

    def run(self) -> None:
        """Write until refused."""
        while not self.refusal:
            self.sent += 1
            body = b"x" * self._chance.choice((100, 5000, 20_000))
            try:
                reply = self._wire.ask("XADD", self.name, f"{self.sent}-0", "n", self.sent, "body", body)
            except (OSError, EOFError) as error:
                self.refusal = f"cut: {error}"
                return
            if isinstance(reply, Exception):
                self.refusal = str(reply)
                self.sent -= 1  # it is certain not to be there
            else:
                self.acknowledged = self.sent


class Round:
    """One life of a server on the small disk.

    Args:
        home: the mount point.
        fsync: the mode.
        seed: the random seed.
    """

    def __init__(self, home: Path, fsync: str, seed: int) -> None:
        self.home = home
        self.chance = random.Random(seed)
        self.log = home.parent / "server"
        self.log.mkdir(exist_ok=True)
        self.server = millstream_server(self.log, "--fsync", fsync)
        at = self.server.command.index("--dir") + 1
        self.server.command[at] = str(home / "data")
        self.acknowledged: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def state(self) -> str:
        """Return INFO's state of the disk."""
        with Wire(self.server.url) as wire:
            text: str = wire.ask("INFO", "persistence").decode()
        rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        assert rows["aof_last_write_status"] == ("ok" if rows["millstream_disk_state"] == "ok" else "err")
        assert int(rows["millstream_disk_free"]) >= 0
        return rows["millstream_disk_state"]

    def writers(self) -> list[Writer]:
        """Return four writers, each continuing at its stream's end."""
        return [
            Writer(self.server, f"s{number}", random.Random(self.chance.random()), self.sent.get(f"s{number}", 0) + 1)
            for number in range(4)
        ]

    def note(self, writers: list[Writer]) -> None:
        """Record the entries: acknowledged ones must exist, sent ones may exist."""
        for writer in writers:
            self.sent[writer.name] = writer.sent
            self.acknowledged[writer.name] = writer.acknowledged

    def fill_to_the_floor(self) -> None:
        """Write until the free-space floor refuses writes; no reply is delayed, and all reads work."""
        with Wire(self.server.url) as wire:
            for name in (f"s{number}" for number in range(4) if f"s{number}" not in self.sent):
                wire.ask("XADD", name, "1-0", "n", 1)  # a writer may be turned away before its first entry
                self.sent[name] = 1
        writers = self.writers()
        for writer in writers:
            writer.join(120)
            assert "MISCONF Errors writing to the AOF file: less than 1.0 MiB are free" in writer.refusal, (
                writer.refusal
            )
        self.note(writers)
        assert self.state() == "low"
        with Wire(self.server.url) as wire:
            for name, count in self.acknowledged.items():
                found = wire.ask("XREVRANGE", name, "+", "-", "COUNT", 1)
                assert found[0][0] == b"%d-0" % count
            for words in (
                ("XDEL", "s0", "1-0"),
                ("PING",),
                ("FLUSHALL",),
                ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s0", ">"),
            ):
                assert str(wire.ask(*words)).startswith("MISCONF"), words
            assert wire.ask("XREAD", "BLOCK", 1, "STREAMS", "s0", "$") is None
            assert len(wire.ask("KEYS", "*")) == len(self.acknowledged) + 1

    def fill_to_the_brim(self) -> None:
        """Without the floor, fill the disk: the write's reply is delayed, other writes are refused, reads work."""
        with Wire(self.server.url) as wire:
            assert wire.ask("CONFIG", "SET", "disk-free-floor", "0") == b"OK"
            eventually(lambda: self.state() == "ok")
        writers = self.writers()
        eventually(lambda: self.state() == "full", 60)
        with Wire(self.server.url) as wire:
            assert wire.ask("GET", "untouched") == b"here"
            assert str(wire.ask("SET", "untouched", "gone")).startswith(
                "MISCONF Errors writing to the AOF file: No space"
            )
            assert str(wire.ask("KEYS", "*")).startswith("MISCONF")
            held = [writer for writer in writers if str(wire.ask("XLEN", writer.name)).startswith("MISCONF")]
            assert held
            eventually(lambda: sum(not writer.is_alive() for writer in writers) >= 4 - len(held))
            assert self.state() == "full"
            assert any(writer.is_alive() for writer in held), "the refused write has got no answer"
            self.held = writers

    def free(self) -> None:
        """Free space: delayed writes are acknowledged and writes accepted again, down to the floor."""
        before = [writer.sent for writer in self.held]
        with Wire(self.server.url) as wire:
            assert wire.ask("CONFIG", "SET", "disk-free-floor", "1mb") == b"OK"
        (self.home / "ballast").unlink()
        for writer in self.held:
            writer.join(120)
            assert "MISCONF" in writer.refusal, writer.refusal
        assert all(writer.acknowledged >= sent for writer, sent in zip(self.held, before, strict=True))
        self.note(self.held)

    def check(self) -> None:
        """After a restart, check that all acknowledged entries exist, in order and once, and none that was not sent."""
        with self.server.client() as client:
            for name, sent in self.sent.items():
                numbers = [int(fields[b"n"]) for _, fields in client.xrange(name)]
                assert numbers == list(range(1, len(numbers) + 1))
                assert self.acknowledged[name] <= len(numbers) <= sent, name
            assert client.get("untouched") == b"here"
            self.sent = {name: client.xlen(name) for name in self.sent}
            self.acknowledged = dict(self.sent)

    def run(self) -> None:
        """Fill to the floor, then to the brim, and stop while the disk is full or after it was freed."""
        (self.home / "ballast").write_bytes(bytes(BALLAST))
        self.server.start()
        with self.server.client() as client:
            assert client.config_get("disk-free-floor") == {"disk-free-floor": str(1024 * 1024)}
            client.set("untouched", "here")
        self.fill_to_the_floor()
        self.fill_to_the_brim()
        way = self.chance.choice(("free", "stop", "kill"))
        if way == "free":
            self.free()
            code = self.server.kill()
        else:
            code = self.server.stop() if way == "stop" else self.server.kill()
            for writer in self.held:
                writer.join(60)
                assert writer.refusal, "its connection was closed"
            self.note(self.held)
            (self.home / "ballast").unlink()
        if way == "stop":
            last = self.server.log.read_text().splitlines()[-1]
            assert code == 1
            assert "unacknowledged records could not be written and are lost" in last, last
        print(way)  # noqa: T201 - for the test's report
        self.server.start()
        self.check()
        if way != "free":  # then the space of the ballast is there yet
            with self.server.client() as client:
                client.xadd("s0", {"n": self.sent["s0"] + 1}, id=f"{self.sent['s0'] + 1}-0")
            self.sent["s0"] += 1
            self.acknowledged["s0"] += 1
        self.server.stop()
        self.server.start()
        self.check()
        assert self.server.stop() == 0


if __name__ == "__main__":
    Round(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])).run()
