"""Jobs on a cluster: their keys share the slot of their stream, and hints reach the waiting node."""

from pathlib import Path

import pytest

from millstream import App, JobCancelledError, JobDeadError, Message, Reject, StreamSub
from support.clusters import Three

STREAMS = ("{a}", "{c}orders", "{e}x", "x{b}")


async def test_jobs_of_three_nodes(tmp_path: Path) -> None:
    """Results, progress, dead letters and cancellations work for streams on every node of a cluster."""
    with Three(tmp_path) as three:
        assert len({three.owner(stream) for stream in STREAMS}) == 3
        app = App(three.url, registry=False)

        async def handle(n: int, msg: Message) -> str:
            if n == 13:
                raise Reject("thirteen")
            await msg.progress(n)
            return f"{msg.stream} {n}"

        for stream in STREAMS:
            app.subscriber(StreamSub(stream, group="g"))(handle)
        early = [app.job(stream, await app.publish(stream, {"n": 1}, result="1h"), group="g") for stream in STREAMS]
        assert [await job.cancel() for job in early] == [True] * 4
        async with app.running():
            for job in early:
                with pytest.raises(JobCancelledError):
                    await job.result("20s")
            for stream in STREAMS:
                assert await app.request(stream, {"n": 2}, timeout=20) == f"{stream} 2"
                job = await app.publish(stream, {"n": 3}, result="1h")
                assert await job.result("20s") == f"{stream} 3"
                assert (await job.state()).progress == {"at": 3, "of": None, "text": ""}
                with pytest.raises(JobDeadError, match="thirteen"):
                    await app.request(stream, {"n": 13}, timeout=20)
