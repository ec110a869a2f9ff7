"""A retry policy for each kind of error."""

import pytest

from millstream import App, Retry, StreamSub
from millstream.worker.testing import run

SERVERS = ["millstream"]


@pytest.mark.parametrize("batch", [False, True])
async def test_errors_end_as_their_policies_say(batch: bool) -> None:
    """Each kind of error follows its own policy: acknowledged, dead at once, retried more often, or the default."""
    app = App()
    runs: list[str] = []
    errors = {"done": KeyError(), "bad": ValueError(), "slow": TimeoutError(), "own": RuntimeError()}
    retry = Retry(
        max_deliveries=2,
        base=1,
        jitter=False,
        on={KeyError: "ack", ValueError: "reject", TimeoutError: Retry(max_deliveries=4, base=1, jitter=False)},
    )

    async def fail(what: str) -> None:
        runs.append(what)
        raise errors[what]

    if batch:

        @app.subscriber(StreamSub("s", group="g", max_records=1), retry=retry, batch=True)
        async def handle_batch(data: list[dict[str, str]]) -> None:
            await fail(data[0]["what"])

    else:

        @app.subscriber(StreamSub("s", group="g"), retry=retry)
        async def handle(what: str) -> None:
            await fail(what)

    async with run(app, raise_errors=False) as broker:
        for what in errors:
            await broker.publish("s", {"what": what})
        await broker.advance("30s")
        dead = {fields["what"]: fields["_dead.reason"] for _, fields in broker.client.xrange("s:dead")}
        left = broker.client.xpending("s", "g")
    assert {what: runs.count(what) for what in errors} == {"done": 1, "bad": 1, "slow": 4, "own": 2}
    assert dead == {"bad": "error", "slow": "error", "own": "error"}
    assert left["pending"] == 0
