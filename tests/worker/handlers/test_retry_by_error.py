"""A retry policy for each kind of error."""

import asyncio

import pytest

from millstream import App, Reject, Retry, StreamSub
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


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    """Return the errors as a task group raises them, with the first in a group of its own."""
    return BaseExceptionGroup("tasks", [BaseExceptionGroup("inner", errors[:1]), *errors[1:]])


class Opaque(ExceptionGroup):
    """A group that does not show its errors."""

    @property
    def exceptions(self) -> tuple[Exception, ...]:
        raise RuntimeError("not today")


SLOW = Retry(max_deliveries=20)
POLICY = Retry(max_deliveries=3, on={ValueError: "reject", KeyError: "ack", TimeoutError: SLOW})


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (group(ValueError()), "reject"),
        (group(ValueError(), ValueError(), Reject()), "reject"),
        (group(KeyError(), KeyError()), "ack"),
        (group(ValueError(), KeyError()), POLICY),
        (group(ValueError(), OSError()), POLICY),
        (group(ValueError(), TimeoutError()), SLOW),
        (group(OSError(), TimeoutError()), SLOW),
        (Opaque("tasks", [ValueError()]), POLICY),
    ],
    ids=repr,
)
def test_a_group_follows_the_policy_of_its_errors(error: BaseException, policy: object) -> None:
    """A task group's errors follow the policy that all share; if they differ, the entry is tried again."""
    assert POLICY.policy(error) == policy


def test_a_class_of_groups_decides_about_the_whole_group() -> None:
    """A policy for a class of groups counts before the policies for the errors in it."""
    policy = Retry(on={ExceptionGroup: "ack", ValueError: "reject"}).policy(ExceptionGroup("tasks", [ValueError()]))
    assert policy == "ack"


async def test_a_task_groups_error_is_rejected_at_once() -> None:
    """A handler whose task group raises an error with the policy "reject" runs once."""
    app, runs = App(), []

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(max_deliveries=4, base=1, on={ValueError: "reject"}))
    async def handle(n: int) -> None:
        async def fail() -> None:
            raise ValueError(n)

        runs.append(n)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    async with run(app, raise_errors=False) as broker:
        await broker.publish("s", {"n": 1})
        await broker.advance("1m")
        assert broker.client.xlen("s:dead") == 1
    assert runs == [1]
