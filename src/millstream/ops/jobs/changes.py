"""The action ``job cancel`` with its plan."""

from typing import Annotated

from millstream.client.jobs import record
from millstream.ops import plan
from millstream.ops.actions import Spread, Word, action
from millstream.ops.jobs.reading import read_job
from millstream.ops.jobs.status import JobSeen
from millstream.ops.making import ActionCall
from millstream.ops.parameters import Group, Stream, entry_id
from millstream.ops.streams.partitioned import known_by, parts_of

_PREVIEW_MS = 86_400_000  # age in milliseconds up to which the time of a preview stays valid


@action("job cancel", "Cancel a job in a group: it never begins, or is interrupted.", "ZADD", loses=True, writes="",
        parts=Spread(parts_of, known_by(lambda texts: ("XRANGE", texts["key"], texts["id"], texts["id"]))))  # fmt: skip
async def cancel(
    change: ActionCall,
    stream: Stream,
    group: Group,
    entry: Annotated[
        str, Word("argument", "ID", name="id", typed="entry", hint="1763721600000-0", read=entry_id, needed=True)
    ],
    at_ms: Annotated[int, Word("hidden", name="at", read=int)] = 0,
) -> plan.ChangePlan:
    """Cancel the job ID of STREAM in GROUP.

    A job that has not begun never begins. A running coroutine gets `CancelledError` within about a second. A
    plain function sees `msg.cancelled`. A job that has ended since the preview is left alone, and the exit code is
    1 then.

    \b
    Examples:
      millstream job cancel orders billing 1763721600000-0 --dry-run
      millstream job cancel orders billing 1763721600000-0 --yes
    """
    await change.require_rights(record.cancelled_key(stream, group))
    seen = await read_job(change.line, stream, entry)
    # Keep the time of the preview, so that the change equals the one that was shown
    at_ms = at_ms if seen.at_ms - _PREVIEW_MS < at_ms <= seen.at_ms else seen.at_ms
    change.settle(at=str(at_ms))
    return plan_cancel(seen, group, at_ms)


def plan_cancel(seen: JobSeen, group: str, at_ms: int) -> plan.ChangePlan:
    """Plan to cancel a job in a group."""
    one = next((each for each in seen.groups if each.group == group), None)
    if one is None:
        raise plan.TargetMissingError(
            f"the stream {seen.stream!r} has no group {group!r}: `millstream group ls` lists them"
        )
    if not one.open:
        raise plan.ChangeRefusedError(f"The job {seen.id} is not cancelled in {group!r}: it is {one.state}.")
    key, results = record.cancelled_key(seen.stream, group), record.result_key(seen.stream, seen.id)
    commands: tuple[plan.Words, ...] = (("ZADD", key, at_ms, seen.id), ("PEXPIRE", key, record.CANCELLED_MS))
    unended = plan.value_check(f"the result in {group!r}", ("HEXISTS", results, group), False)
    back = plan.Undo(commands=(("ZREM", key, seen.id),), note="Only until a worker has carried it out.")
    table = (plan.BeforeAfter(f"{seen.id} in {group}", one.state, "cancelled"),)
    return plan.ChangePlan(
        "job cancel", seen.stream, group, f"Cancel the job {seen.id} of {seen.stream!r} in {group!r}?", table,
        steps=(plan.Step(commands, (unended,)),), undo=back, facts={"jobs": [seen.id]}, key=key,
    )  # fmt: skip
