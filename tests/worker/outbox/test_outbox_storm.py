"""Transactions while relays, server and database are killed: a committed one is one entry, a rolled-back one none."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from millstream import App, outbox
from support import campaign
from support.databases import NAMES, Database, database
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually, eventually

COUNT = 2_500
WRITERS = 4
STREAMS = ("s", "t{s}", "{u}v")
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


class Storm:
    """One piece of the campaign."""

    def __init__(self, base: Database, server: ServerProcess, folder: Path, seed: int) -> None:
        self.base, self.server, self.folder, self.seed = base, server, folder, seed
        self.chance = random.Random(seed)
        self.committed: set[str] = set()
        self.doubtful: set[str] = set()  # No answer to the commit
        self.kills: Counter[str] = Counter()
        self.done = 0

    async def run(self) -> int:
        """Write and kill; then check every transaction."""
        (self.folder / "shop.py").write_text(
            f"import sqlalchemy\nengine = sqlalchemy.create_engine({self.base.url!r}, pool_pre_ping=True)\n"
        )
        engine = self.base.engine()
        outbox.create(engine)
        relays = [self.relay() for _ in range(2)]
        try:
            async with App(self.server.url, registry=False).running():  # it moves what is delayed
                writing = [asyncio.to_thread(self.write, number) for number in range(WRITERS)]
                await asyncio.gather(self.kill(relays), *writing)
                await aeventually(lambda: self.left(engine) == 0, 120, what="no row is left")
                await aeventually(self.nothing_waits, what="no schedule is left")
        finally:
            engine.dispose()
            for one in relays:
                one.kill()
                one.wait()
        self.check()
        campaign.show("outbox", f"{self.base.name}: {len(self.committed)} entries, kills: {dict(self.kills)}")
        return COUNT

    def relay(self) -> "subprocess.Popen[bytes]":
        """Start a relay process."""
        environment = {**os.environ, "MILLSTREAM_URL": self.server.url}
        words = [MILLSTREAM, "outbox", "relay", "shop:engine"]
        with (self.folder / "relays.log").open("ab") as log:
            return subprocess.Popen(words, cwd=self.folder, env=environment, stderr=log, stdout=log)

    def write(self, number: int) -> None:
        """Write a share of the transactions, half of them rolled back."""
        chance = random.Random(self.seed * 10 + number)
        arguments = {"timeout": 60} if self.base.name == "sqlite" else {}
        engine = sqlalchemy.create_engine(self.base.url, pool_pre_ping=True, connect_args=arguments)
        for n in range(number, COUNT, WRITERS):
            names = [f"{number}-{n}-{part}" for part in range(chance.randint(1, 3))]
            keeps = chance.random() < 0.5
            try:
                with engine.connect() as connection:
                    for name in names:
                        delay = chance.choice([None, None, None, 0.5])
                        content = {"name": name, "late": delay is not None}
                        outbox.add(connection, chance.choice(STREAMS), content, delay=delay)
                    if keeps:
                        self.doubtful.update(names)
                        connection.commit()
                        self.doubtful.difference_update(names)
                        self.committed.update(names)
            except SQLAlchemyError:
                eventually(lambda: self.left(engine) >= 0, 60, what="the database is back")
            self.done += 1
        engine.dispose()

    async def kill(self, relays: "list[subprocess.Popen[bytes]]") -> None:
        """Kill relays, the server and the database at set points of the work."""
        for mark in range(100, COUNT - 100, 100):
            await aeventually(lambda mark=mark: self.done >= mark, 120)
            what = "server" if mark % 500 == 0 else "database" if mark % 800 == 0 else "relay"
            if what == "database" and self.base.name == "sqlite":
                what = "relay"
            self.kills[what] += 1
            if what == "relay":
                victim = relays.pop(self.chance.randrange(len(relays)))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                relays.append(self.relay())
            else:
                one = self.server if what == "server" else self.base
                one.kill()
                await asyncio.to_thread(one.start)

    @staticmethod
    def left(engine: sqlalchemy.Engine) -> int:
        """Count the rows in the outbox."""
        try:
            with engine.connect() as connection:
                return int(connection.scalar(sqlalchemy.text("SELECT COUNT(*) FROM millstream_outbox")) or 0)
        except SQLAlchemyError as error:
            raise LookupError(error) from None

    def nothing_waits(self) -> bool:
        """Report whether every delayed entry was added."""
        with self.server.client() as client:
            return not list(client.scan_iter("millstream:*later:*due"))

    def check(self) -> None:
        """Check that each committed row was added once, no rolled-back one was, and each writer's order holds."""
        seen: Counter[str] = Counter()
        with self.server.client(decode_responses=True) as client:
            for stream in STREAMS:
                last: dict[str, int] = {}
                rows: Any = client.xrange(stream)
                for _, fields in rows:
                    seen[fields["name"]] += 1
                    if json.loads(fields["late"]):
                        continue
                    writer, n, part = map(int, fields["name"].split("-"))
                    assert last.get(str(writer), -1) < n * 10 + part, f"{fields['name']} is out of order"
                    last[str(writer)] = n * 10 + part
        assert [name for name, count in seen.items() if count > 1] == [], "added twice"
        assert sorted(self.committed - set(seen)) == [], "lost"
        assert sorted(set(seen) - self.committed - self.doubtful) == [], "rolled back and added"


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 2,500 transactions by four writers, with two relays and 23 kills."""
    folder.mkdir()
    server = (
        redis_server(folder, "--appendonly", "yes", "--appendfsync", "always")
        if seed % 2
        else millstream_server(folder, "--fsync", "always")
    )
    with database(NAMES[seed % 3]) as base, server:
        return asyncio.run(Storm(base, server, folder, seed).run())


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_transactions_in_a_storm(tmp_path: Path) -> None:
    """Each committed row among 100,000 transactions on three databases under kills becomes one entry."""
    campaign.run("outbox", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 41), unit="transactions")
