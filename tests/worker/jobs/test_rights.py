"""The access rights that docs/worker/reference.md lists for jobs are enough, on every server."""

import asyncio

import pytest
import redis

from millstream import App, JobCancelledError, Message, StreamSub
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.waiting import aeventually
from worker.later.test_rights import BASE, rights

SERVERS = ["redis", "millstream", *needs.OTHERS]
#: Rights of a worker without jobs
WORKER = (
    "~orders ~millstream:{orders}:tries:* ~millstream:{orders}:due:* +xreadgroup +xgroup +xack +xpending +xclaim "
    "+xautoclaim +xinfo +xrange +xlen +hmget +hset +hdel +zadd +zrem +zrange +zmscore +time +exists +expire +pexpire "
    "+evalsha +eval"
)


@pytest.mark.parametrize("who", ["worker", "worker without scripts", "publisher"])
async def test_the_rights_of_the_page_are_enough(server: ServerProcess, client: redis.Redis, who: str) -> None:
    """The listed rights are enough to complete a job with progress and to cancel another."""
    client.xgroup_create("orders", "g", mkstream=True)
    rules = [*BASE.split(), *WORKER.split(), *rights("runs jobs")]
    if who == "publisher":
        rules = [*BASE.split(), *rights("waits for results"), *rights("cancels jobs")]
    elif who != "worker":
        rules += ["-eval", "-evalsha"]
    with user(client, *rules) as login:
        url = server.url.replace("://", f"://{login}")
        app = App(server.url if who == "publisher" else url, registry=False, movers=False)

        @app.subscriber(StreamSub("orders", group="g"))
        async def handle(n: int, msg: Message) -> int:
            await msg.progress(n, of=10)
            if n == 2:
                await asyncio.Event().wait()
            return n

        async with app.running(), App(url if who == "publisher" else server.url) as asking:
            assert await asking.request("orders", {"n": 1}, timeout=20) == 1
            job = await asking.publish("orders", {"n": 2}, result="1h")
            await aeventually(lambda: app.stats()["handle"]["read"] == 2)
            assert (await job.state()).state == "running"
            assert await job.cancel()
            with pytest.raises(JobCancelledError):
                await job.result("20s")
