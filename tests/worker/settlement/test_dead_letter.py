"""If the server refuses a dead letter, the entry stays pending and uncharged until the server accepts one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App, Reject, StreamSub, failpoints
from millstream.client.dead_letter import transaction
from support.accounts import user
from support.groups import all_done, consumers, pending
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.thief import Thief
from support.waiting import aeventually

WAYS = pytest.mark.parametrize(
    "rules", [("+@all", "~*"), ("+@all", "-@scripting", "~*")], ids=["script", "transaction"]
)


class Hindered:
    """A server that refuses writes for a while."""

    def __init__(self, kind: str, client: redis.Redis, folder: Path) -> None:
        self.kind = kind
        self.client = client
        self.folder = folder

    async def begin(self) -> None:
        """Make the server refuse writes: without memory, as a replica, or with a failed snapshot."""
        if self.kind == "OOM":
            self.client.config_set("maxmemory", 1)
        elif self.kind == "READONLY":
            self.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        else:
            (self.folder / "taken.rdb").mkdir()
            await self._save("err")

    async def end(self) -> None:
        """Make the server accept writes again."""
        if self.kind == "OOM":
            self.client.config_set("maxmemory", 0)
        elif self.kind == "READONLY":
            self.client.execute_command("REPLICAOF", "NO", "ONE")
        else:
            (self.folder / "taken.rdb").rmdir()
            await self._save("ok")

    async def _save(self, status: str) -> None:
        self.client.bgsave()

        def ended() -> bool:
            info: Any = self.client.info("persistence")
            return info["rdb_bgsave_in_progress"] == 0 and info["rdb_last_bgsave_status"] == status

        await aeventually(ended)


@pytest.mark.realserver
@WAYS
@pytest.mark.parametrize("kind", ["OOM", "MISCONF", "READONLY"])
async def test_a_letter_waits_for_a_server_that_takes_writes(tmp_path: Path, kind: str, rules: tuple[str, ...]) -> None:
    """While the server refuses writes, a failed entry stays pending. Afterwards it has one dead letter."""
    tries: list[int] = []
    failpoints.on("before_dead", lambda: tries.append(1))
    options = ("--save", "3600 1000000", "--dbfilename", "taken.rdb")
    with (
        redis_server(tmp_path, *options) as server,
        server.client(decode_responses=True) as client,
        user(client, *rules) as name,
    ):
        hindered = Hindered(kind, client, tmp_path)
        app, began, go = App(server.url.replace("://", f"://{name}"), registry=False), asyncio.Event(), asyncio.Event()

        @app.subscriber(StreamSub("s", group="g"))
        async def handle(x: int) -> None:
            began.set()
            await go.wait()
            raise Reject("no good")

        async with app.running():
            entry: Any = client.xadd("s", {"x": 1})
            await began.wait()
            await hindered.begin()
            go.set()
            await aeventually(lambda: len(tries) > 1 or client.exists("s:dead"))
            if not client.exists("s:dead"):
                assert [count for _, count in pending(client, "s", "g").values()] == [1]
            await hindered.end()
            await aeventually(all_done(client, "s", "g"))
        letters: Any = client.xrange("s:dead")
        assert [fields["_dead.id"] for _, fields in letters] == [entry]


async def test_what_a_transaction_acked_without_a_letter_is_pending_again(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If EXEC acknowledged an entry without adding its dead letter, the entry is made pending again, uncharged."""
    # simulates an unforeseen hindrance: the check before finds nothing
    monkeypatch.setattr(transaction, "hindrance", lambda *_: None)
    tries: list[int] = []
    failpoints.on("in_dead", lambda: tries.append(1))
    client.set("s:dead", "no stream")
    with user(client, "+@all", "-@scripting", "~*") as name:
        app = App(server.url.replace("://", f"://{name}"), registry=False)

        @app.subscriber(StreamSub("s", group="g"))
        async def handle(x: int) -> None:
            raise Reject("no good")

        entry: Any = client.xadd("s", {"x": 1})
        async with app.running():
            await aeventually(lambda: len(tries) > 1)
            await aeventually(
                lambda: pending(client, "s", "g") == {entry: (next(iter(consumers(client, "s", "g"))), 1)}
            )
            client.delete("s:dead")
            await aeventually(all_done(client, "s", "g"))
    letters: Any = client.xrange("s:dead")
    assert [(fields["_dead.id"], fields["_dead.deliveries"]) for _, fields in letters] == [(entry, "1")]


@pytest.mark.parametrize(("word", "through"), [(b"FORCE", False), (b"FORCE", True), (b"EXEC", True)])
async def test_a_connection_that_breaks_behind_a_refused_letter_loses_no_entry(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, word: bytes, through: bool
) -> None:
    """A connection that breaks after EXEC acknowledged an entry without its dead letter loses no entry."""
    monkeypatch.setattr(transaction, "hindrance", lambda *_: None)  # as above
    client.set("s:dead", "no stream")
    async with Thief(server.port, word, through=through) as thief:
        with user(client, "+@all", "-@scripting", "~*") as name:
            app = App(f"redis://{name}127.0.0.1:{thief.port}/0", registry=False)

            @app.subscriber(StreamSub("s", group="g"))
            async def handle(x: int) -> None:
                raise Reject("no good")

            entry: Any = client.xadd("s", {"x": 1})
            async with app.running():
                await aeventually(lambda: thief.stolen == 1)
                await aeventually(lambda: entry in pending(client, "s", "g"))
                client.delete("s:dead")
                await aeventually(all_done(client, "s", "g"))
                await aeventually(lambda: app.stats()["handle"]["dead"] == 1)
    letters: Any = client.xrange("s:dead")
    assert [(fields["_dead.id"], fields["_dead.deliveries"]) for _, fields in letters] == [(entry, "1")]
    assert app.stats()["handle"]["lost"] == 0


async def test_the_rights_that_the_docs_give_a_worker_are_enough_for_letters(
    server: ServerProcess, client: redis.Redis
) -> None:
    """The rights of docs/server.md are enough to write dead letters, without scripts and without TYPE."""
    with user(client, "~s*", "+@stream", "+@connection", "+@transaction") as name:
        app = App(server.url.replace("://", f"://{name}"), registry=False)

        @app.subscriber(StreamSub("s", group="g"))
        async def handle(x: int) -> None:
            raise Reject("no good")

        entry: Any = client.xadd("s", {"x": 1})
        async with app.running():
            await aeventually(all_done(client, "s", "g"))
    letters: Any = client.xrange("s:dead")
    assert [fields["_dead.id"] for _, fields in letters] == [entry]
