"""A command that ran but lost its reply is repeated, and takes effect once."""

from collections import Counter
from typing import Any

import pytest
import redis

from millstream import App, Message, Reject, Retry, StreamSub
from millstream.client.dead_letter.transaction import SCRIPT_SHA
from support.groups import all_done
from support.servers import ServerProcess
from support.thief import Thief
from support.waiting import aeventually


@pytest.mark.parametrize(
    ("what", "word"),
    [("ack", b"\r\nXACK\r\n"), ("retry", b"(retry)"), ("reject", SCRIPT_SHA.encode())],
    ids=["ack", "retry", "reject"],
)
async def test_an_outcome_whose_reply_is_lost_is_stored_once_and_known_to_be(
    server: ServerProcess, client: redis.Redis, what: str, word: bytes
) -> None:
    """An outcome whose reply is lost is stored once: nothing runs twice, is dead twice, or counts as lost."""
    runs = Counter[tuple[str, int]]()
    async with Thief(server.port, word) as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)

        @app.subscriber(
            StreamSub("s", group="g", min_idle_time=3_600_000),
            retry=Retry(max_deliveries=2, base=0.5, jitter=False),
            concurrency=1,
        )
        async def handle(do: str, msg: Message) -> None:
            runs[do, msg.delivery_count] += 1
            if do == "reject":
                raise Reject("no good")
            if do == "retry" and msg.delivery_count == 1:
                raise ValueError("once more")

        ids: dict[str, Any] = {do: client.xadd("s", {"do": do}) for do in ("ack", "retry", "reject")}
        async with app.running():
            await aeventually(all_done(client, "s", "g"))
            await aeventually(lambda: app.stats()["handle"]["acked"] == 2)
        assert thief.stolen == 1, what
    assert runs == {("ack", 1): 1, ("retry", 1): 1, ("retry", 2): 1, ("reject", 1): 1}
    rows: Any = client.xrange("s:dead")
    assert [fields["_dead.id"] for _, fields in rows] == [ids["reject"]]
    stats = app.stats()["handle"]
    assert (stats["acked"], stats["dead"], stats["lost"], stats["fenced"]) == (2, 1, 0, 0)
