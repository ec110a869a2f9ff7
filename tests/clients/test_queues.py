"""Unmodified libraries for Redis, each with a small job on a Millstream server.

They are job queues (celery, arq, taskiq, huey, rq, dramatiq), redis-py's lock, and the rate limits of ``limits``.

They need lists that wait, sorted sets by time, hashes, pub/sub, transactions and scripts. FastStream has its own file.
docs/compatibility.md names these libraries and those that do not run.
"""

import asyncio
import gc
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import arq
import arq.worker
import celery
import dramatiq
import huey
import huey.exceptions
import limits
import limits.storage
import limits.strategies
import pytest
import redis
import redis.exceptions
import rq
import taskiq.api
import taskiq.receiver
import taskiq_redis
from celery.contrib.testing.worker import start_worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends.redis import RedisBackend

from support.servers import ServerProcess, millstream_server
from support.waiting import DEADLINE, aeventually, eventually

# These libraries choose their calls of redis-py, and leave connections to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect garbage after each test, so that no warning appears in another test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A Millstream server with a data directory. Each library has a database of its own."""
    with millstream_server(tmp_path_factory.mktemp("queues")) as found:
        yield found


def database(server: ServerProcess, number: int) -> str:
    """Return the URL of one of the server's databases."""
    return f"redis://127.0.0.1:{server.port}/{number}"


def test_celery(server: ServerProcess) -> None:
    """Celery runs tasks with results, retries, later times and groups, and leaves nothing unacknowledged."""
    url = database(server, 1)
    app = celery.Celery("jobs", broker=url, backend=url, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, task_acks_late=True, worker_hijack_root_logger=False)
    tried: list[int] = []

    @app.task(name="add")
    def add(one: int, two: int) -> int:
        return one + two

    @app.task(name="unsure", bind=True, max_retries=3)
    def unsure(self: Any, wanted: int) -> int:
        tried.append(wanted)
        if len(tried) < wanted:
            raise self.retry(countdown=0)
        return len(tried)

    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR", shutdown_timeout=20):
        assert add.delay(2, 3).get(timeout=20) == 5
        assert unsure.delay(2).get(timeout=20) == 2
        assert add.apply_async((4, 5), countdown=0.2).get(timeout=20) == 9
        assert celery.group(add.s(number, 1) for number in range(5)).apply_async().get(timeout=20) == [1, 2, 3, 4, 5]
    with redis.Redis.from_url(url) as client:
        assert client.llen("celery") == client.hlen("unacked") == 0


async def test_arq(server: ServerProcess) -> None:
    """``arq`` runs jobs with results, retries and later times, and refuses a duplicate job."""
    attempts: list[int] = []

    async def greet(ctx: dict[str, Any], name: str) -> str:
        return f"hello {name}"

    async def unsure(ctx: dict[str, Any]) -> int:
        attempts.append(ctx["job_try"])
        if ctx["job_try"] < 2:
            raise arq.Retry
        return len(attempts)

    settings = arq.connections.RedisSettings(host="127.0.0.1", port=server.port, database=2)
    pool = await arq.create_pool(settings)
    try:
        first = await pool.enqueue_job("greet", "you", _job_id="one")
        assert await pool.enqueue_job("greet", "you", _job_id="one") is None
        second = await pool.enqueue_job("unsure")
        third = await pool.enqueue_job("greet", "later", _defer_by=timedelta(milliseconds=100))
        worker = arq.worker.Worker(
            [arq.func(greet, name="greet"), arq.func(unsure, name="unsure")],
            redis_settings=settings,
            burst=True,
            poll_delay=0.02,
            handle_signals=False,
        )
        await worker.main()
        await worker.close()
        assert first
        assert second
        assert third
        assert await first.result(timeout=10, poll_delay=0.02) == "hello you"
        assert await second.result(timeout=10, poll_delay=0.02) == 2
        assert await third.result(timeout=10, poll_delay=0.02) == "hello later"
    finally:
        await pool.close(close_connection_pool=True)


@pytest.mark.parametrize("kind", [taskiq_redis.ListQueueBroker, taskiq_redis.RedisStreamBroker])
async def test_taskiq(server: ServerProcess, kind: type[Any]) -> None:
    """``taskiq`` runs tasks over a list and over a stream with a group, with results, and acknowledges all."""
    url = database(server, 3)
    backend: Any = taskiq_redis.RedisAsyncResultBackend(url)
    broker = kind(url, queue_name=kind.__name__).with_result_backend(backend)

    @broker.task
    async def double(number: int) -> int:
        return number * 2

    await broker.startup()
    # Ends after its last task by itself: a cancelled receiver never ends if its read returns at that moment
    five = partial(taskiq.receiver.Receiver, max_tasks_to_execute=5)
    receiver = asyncio.create_task(taskiq.api.run_receiver_task(broker, five))
    try:
        jobs = [await double.kiq(number) for number in range(5)]
        results = [await job.wait_result(timeout=20, check_interval=0.02) for job in jobs]
        assert [result.return_value for result in results] == [0, 2, 4, 6, 8]
        if kind is taskiq_redis.RedisStreamBroker:
            with redis.Redis.from_url(url) as client:
                await aeventually(lambda: client.xpending(kind.__name__, "taskiq")["pending"] == 0)
    finally:
        await asyncio.wait([receiver], timeout=DEADLINE)
        await broker.shutdown()


def came_to(app: huey.RedisHuey, job: str, result: int) -> bool:
    """Report whether a job of Huey has this result; until its next try it has the last error."""
    try:
        return bool(app.result(job, preserve=True) == result)
    except huey.exceptions.TaskException:
        return False


def test_huey(server: ServerProcess) -> None:
    """Huey's plain queue runs a job with a result, a retry, a later one, and a pipeline of two."""
    app = huey.RedisHuey("jobs", url=database(server, 4))
    tried: list[int] = []

    @app.task()
    def add(one: int, two: int) -> int:
        return one + two

    @app.task(retries=2)
    def unsure() -> int:
        tried.append(1)
        if len(tried) < 2:
            raise ValueError
        return len(tried)

    consumer = app.create_consumer(workers=1, periodic=False, initial_delay=0.02, scheduler_interval=1)
    consumer.start()
    try:
        assert add(2, 3).get(blocking=True, timeout=20) == 5
        eventually(partial(came_to, app, unsure().id, 2), what="the second try is through")
        assert app.enqueue(add.s(1, 2).then(add, 10)).get(blocking=True, timeout=20) == [3, 13]
        assert add.schedule((4, 5), delay=1).get(blocking=True, timeout=20) == 9
    finally:
        consumer.stop(graceful=True)
        app.storage.conn.close()


def test_huey_by_priority(server: ServerProcess) -> None:
    """Huey's priority queue runs the most urgent job first, and its worker waits for later ones."""
    app = huey.PriorityRedisHuey("urgent", url=database(server, 5))
    ran: list[int] = []

    @app.task()
    def note(number: int) -> int:
        ran.append(number)
        return number

    for priority in (1, 3, 2):
        note(priority, priority=priority)
    consumer = app.create_consumer(workers=1, periodic=False, initial_delay=0.02)
    consumer.start()
    try:
        assert note(0, priority=0).get(blocking=True, timeout=20) == 0
        assert ran == [3, 2, 1, 0]
    finally:
        consumer.stop(graceful=True)
        app.storage.conn.close()


def test_rq(server: ServerProcess) -> None:
    """``rq`` runs jobs with results, dependencies and failures, and leaves its queue empty."""
    with redis.Redis.from_url(database(server, 6)) as client:
        queue = rq.Queue("jobs", connection=client)
        first = queue.enqueue("operator.add", 2, 3)
        second = queue.enqueue("operator.mul", 4, 5, depends_on=first)
        bad = queue.enqueue("operator.truediv", 1, 0)
        assert rq.SimpleWorker([queue], connection=client).work(burst=True, logging_level="ERROR")
        assert (first.return_value(), second.return_value()) == (5, 20)
        assert bad.get_status(refresh=True) == rq.job.JobStatus.FAILED
        assert (len(queue), len(queue.failed_job_registry), len(queue.finished_job_registry)) == (0, 1, 2)


def test_dramatiq(server: ServerProcess) -> None:
    """``dramatiq`` runs actors with results, retries and groups, and a result can be awaited."""
    url = database(server, 7)
    broker, backend = RedisBroker(url=url), RedisBackend(url=url)
    broker.add_middleware(Results(backend=backend))
    tried: list[int] = []

    def add(one: int, two: int) -> int:
        return one + two

    def unsure() -> int:
        tried.append(1)
        if len(tried) < 2:
            raise ValueError
        return len(tried)

    adding = dramatiq.actor(add, broker=broker, store_results=True)
    unsafe = dramatiq.actor(unsure, broker=broker, store_results=True, max_retries=2, min_backoff=1, max_backoff=2)
    worker = dramatiq.Worker(broker, worker_timeout=20, worker_threads=1)
    worker.start()
    try:
        assert adding.send(2, 3).get_result(backend=backend, block=True, timeout=20_000) == 5
        group = dramatiq.group([adding.message(number, 1) for number in range(3)], broker=broker).run()
        assert list(group.get_results(block=True, timeout=20_000)) == [1, 2, 3]
        assert unsafe.send().get_result(backend=backend, block=True, timeout=20_000) == 2
    finally:
        worker.stop()
        broker.close()
        backend.client.close()


@pytest.mark.parametrize("strategy", sorted(limits.strategies.STRATEGIES))
def test_limits(server: ServerProcess, strategy: str) -> None:
    """``limits`` allows three hits an hour and refuses a fourth, by each counting strategy."""
    storage = limits.storage.storage_from_string(database(server, 8))
    limiter, hour = limits.strategies.STRATEGIES[strategy](storage), limits.parse("3/hour")
    try:
        assert [limiter.hit(hour, strategy) for _ in range(4)] == [True, True, True, False]
        assert limiter.get_window_stats(hour, strategy).remaining == 0
        limiter.clear(hour, strategy)
        assert limiter.hit(hour, strategy)
    finally:
        storage.storage.close()


def test_redis_py_lock(server: ServerProcess) -> None:
    """redis-py's Lock has one holder at a time, who alone can extend or release it, and it expires."""
    with server.client() as one, server.client() as two:
        mine, theirs = one.lock("door", timeout=20), two.lock("door", timeout=20)
        assert mine.acquire(blocking=False)
        assert not theirs.acquire(blocking=False)
        assert mine.extend(10)
        assert 20_000 < one.pttl("door") <= 30_000
        assert mine.reacquire()
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            two.lock("door", timeout=1).do_release(b"somebody else")
        got = threading.Event()
        waiting = threading.Thread(target=lambda: theirs.acquire(blocking_timeout=20) and got.set())
        waiting.start()
        mine.release()
        waiting.join(30)
        assert got.is_set()
