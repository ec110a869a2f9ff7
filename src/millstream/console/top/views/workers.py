"""Who works: workers with what they have in hand and since when, those that vanished, what is paused."""

from millstream.console import words
from millstream.console.model.facts.marks import LONG_JOB
from millstream.console.model.workers import RunningJob, SubscriberStatus, WorkersSeen, WorkerStatus
from millstream.console.reading import fleet
from millstream.console.top.views.asked import NoPlaceError, TopAsked
from millstream.console.top.views.view import TopView, ViewColumn, ViewRow, ViewSection, place

ACTIONS = ("worker quiet", "worker drain", "worker stop", "worker pause", "worker resume", "worker reap")

_WORKERS = (
    ViewColumn("worker", prose=True),
    ViewColumn("state"),
    ViewColumn("running", right=True),
    ViewColumn("slots", right=True, rank=4),
    ViewColumn("longest", right=True, rank=1),
    ViewColumn("last beat", right=True, rank=2),
    ViewColumn("handlers", rank=3, prose=True),
    ViewColumn("last error", rank=5, prose=True),
)
_JOBS = (
    ViewColumn("entry"),
    ViewColumn("for", right=True),
    ViewColumn("times", right=True, rank=2),
    ViewColumn("handler", prose=True),
    ViewColumn("stream", rank=1, prose=True),
    ViewColumn("worker", rank=3, prose=True),
)
_PAUSES = (
    ViewColumn("stream", prose=True),
    ViewColumn("group", prose=True),
    ViewColumn("paused", right=True),
    ViewColumn("by", rank=1, prose=True),
    ViewColumn("reason", prose=True),
)
_VANISHED = (ViewColumn("worker", prose=True), ViewColumn("last beat", right=True))
_SUBSCRIBERS = (
    ViewColumn("handler", prose=True),
    ViewColumn("stream", prose=True),
    ViewColumn("group", prose=True, rank=1),
    ViewColumn("running", right=True),
    ViewColumn("buffered", right=True, rank=3),
    ViewColumn("handled", right=True),
    ViewColumn("failed", right=True),
    ViewColumn("dead", right=True),
    ViewColumn("paused", rank=2, prose=True),
)


async def workers_view(asked: TopAsked) -> TopView:
    """All workers.

    Raises:
        Disconnected: the server does not answer.
    """
    reading = await asked.watch.read("workers", fleet.workers)
    seen = reading.value
    jobs = sorted((job for worker in seen.workers for job in worker.jobs), key=lambda job: -job.for_ms)
    rows = tuple(_worker_row(one, seen.at_ms) for one in seen.workers)
    return TopView(
        title="workers",
        figures=(
            ("alive", words.count(len(seen.workers))),
            ("running", words.count(len(jobs))),
            ("vanished", words.count(len(seen.vanished))),
            ("paused", words.count(len(seen.pauses))),
        ),
        notes=(
            *((f"Nothing is known of workers: {seen.why}",) if seen.why else ()),
            *(f"{words.name(key)} is no record of a worker: something else wrote it" for key in seen.strange),
        ),
        sections=(
            ViewSection("workers", _WORKERS, rows, "No workers."),
            _pauses(seen),
            ViewSection("in hand, the longest first", _JOBS, tuple(map(_job_row, jobs))),
            ViewSection("vanished without signing off", _VANISHED, tuple(
                ViewRow(f"vanished {one.id!r}", (words.name(one.id), words.ago(seen.at_ms - one.beat_ms)), mark="!")
                for one in seen.vanished
            )),
        ),
        command_lines=(asked.shell("worker", "ls"),),
        actions=ACTIONS,
        **asked.source(reading),
    )  # fmt: skip


async def worker_view(asked: TopAsked) -> TopView:
    """One worker.

    Raises:
        MillstreamError: it is not alive, the server does not answer.
    """
    ident = asked.word("id")
    reading = await asked.watch.read("workers", fleet.workers)
    seen = reading.value
    worker = next((one for one in seen.workers if one.id == ident), None)
    if worker is None:
        raise NoPlaceError(f"the worker {ident!r} is not alive any more")
    notes = [f"Its event loop stands still at {worker.blocked_at}."] if worker.blocked_at is not None else []
    notes += [f"Ordered to {worker.ordered}."] if worker.ordered else []
    if worker.error is not None:
        where = f" at entry {worker.error_entry}" if worker.error_entry else ""
        when = words.ago(seen.at_ms - (worker.error_ms or 0))
        notes.append(f"Last error{where}, {when}: {words.brief(worker.error, 400)}")
    subscribers = tuple(map(_subscriber_row, worker.subscribers))
    return TopView(
        title=words.name(ident),
        figures=(
            ("state", worker.state),
            ("host", words.name(worker.host)),
            ("pid", str(worker.pid)),
            ("version", words.name(worker.version)),
            ("up for", words.span(seen.at_ms - worker.started_ms)),
            ("last beat", words.ago(seen.at_ms - worker.beat_ms)),
        ),
        notes=tuple(notes),
        sections=(
            ViewSection("subscribers", _SUBSCRIBERS, subscribers, "It has none."),
            ViewSection("in hand, the longest first", _JOBS, tuple(map(_job_row, worker.jobs)), "Nothing runs."),
        ),
        command_lines=(asked.shell("worker", "show", ident),),
        about={"worker": ident},
        actions=ACTIONS,
        **asked.source(reading),
    )


def _worker_row(one: WorkerStatus, now_ms: int) -> ViewRow:
    jobs = one.jobs
    longest = jobs[0].for_ms if jobs else None
    blocked = one.blocked_at is not None
    cells = (
        words.name(one.id),
        f"{one.state} for {words.span(one.blocked_ms)}" if blocked else one.state,
        words.count(sum(each.running for each in one.subscribers)),
        words.count(sum(each.slots for each in one.subscribers)),
        words.span(longest),
        words.ago(now_ms - one.beat_ms),
        ", ".join(words.name(each.handler) + (" (paused)" if each.paused else "") for each in one.subscribers),
        words.brief(one.error or "-", 200),
    )
    mark = "!" if blocked or (longest or 0) >= LONG_JOB else ""
    return ViewRow(f"worker {one.id!r}", cells, place("worker", id=one.id), mark, {"worker": one.id})


def _job_row(job: RunningJob) -> ViewRow:
    times, span = words.count(job.deliveries), words.span(job.for_ms)
    cells = (job.id, span, times, words.name(job.handler), words.name(job.stream), words.name(job.worker))
    to = place("entry", key=job.stream, id=job.id)
    mark = "!" if job.for_ms >= LONG_JOB else ""
    return ViewRow(f"job {job.worker!r} {job.stream!r} {job.group!r} {job.id}", cells, to, mark, {"worker": job.worker})


def _pauses(seen: WorkersSeen) -> ViewSection:
    rows = []
    for one in seen.pauses:
        about = {"key": one.stream, "group": one.group}
        since = words.ago(seen.at_ms - one.at_ms)
        cells = (words.name(one.stream), words.name(one.group), since, words.name(one.by), words.brief(one.reason, 200))
        rows.append(ViewRow(f"pause {one.stream!r} {one.group!r}", cells, place("group", **about), "!", about))
    return ViewSection("paused", _PAUSES, tuple(rows))


def _subscriber_row(one: SubscriberStatus) -> ViewRow:
    counts = (one.running, one.buffered, one.handled, one.failed, one.dead)
    cells = (words.name(one.handler), words.name(one.stream), words.name(one.group), *map(words.count, counts),
             words.brief(one.paused or "-", 100))  # fmt: skip
    about = {"key": one.stream, "group": one.group}
    return ViewRow(
        f"subscriber {one.handler!r} {one.stream!r} {one.group!r}", cells, place("group", **about), "", about
    )
