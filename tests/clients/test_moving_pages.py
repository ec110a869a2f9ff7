"""The pages on moving from another library: both printed programs do the same work."""

import asyncio
import gc
import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import taskiq.api
import taskiq.receiver
from celery.contrib.testing.worker import start_worker
from rq import SimpleWorker

from millstream.worker import testing
from support.readme import block
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import DEADLINE, aeventually, eventually

pytest_plugins = ["pytester"]

WRITTEN = "redis://localhost:6379/0"

# These libraries choose their calls of redis-py, and leave connections to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Programs:
    """Programs of the pages as modules, with their output.

    Args:
        folder: directory of the written programs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: list[str] = []

    def load(self, page: str, name: str, url: str) -> ModuleType:
        """Load the program of a page that begins with ``# name.py``, with this server's URL."""
        text = block("python", f"# {name}.py", page=f"docs/{page}.md")
        (self.folder / f"{name}.py").write_text(text.replace(WRITTEN, url))
        importlib.invalidate_caches()
        sys.modules.pop(name, None)
        module = importlib.import_module(name)
        module.print = self.printed.append  # type: ignore[attr-defined]  # what the program calls
        return module


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    """Programs in a folder of their own, unloaded after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Programs(tmp_path)
    for name in set(sys.modules) - before:
        if Path(str(getattr(sys.modules[name], "__file__", ""))).parent == tmp_path:
            del sys.modules[name]
    gc.collect()  # what they left is reported here, where it is ignored, and not in the test that comes next


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A Millstream server, which celery and taskiq use as well."""
    with millstream_server(tmp_path_factory.mktemp("moving")) as found:
        yield found


async def ours(programs: Programs, page: str, url: str) -> None:
    """Check that the page's Millstream program bills the order, and retries a first failure."""
    module = programs.load(page, "shop", url)
    async with testing.run(module.app) as broker:
        await broker.publish("orders", {"order": 7, "amount": 3.5})
        await broker.run_until_idle()
    assert programs.printed == ["billing 7: 3.50"]


async def test_from_celery(server: ServerProcess, programs: Programs) -> None:
    """The page's celery task and Millstream handler print the same."""
    module = programs.load("from-celery", "celery_shop", server.url)
    module.app.conf.update(worker_hijack_root_logger=False, worker_redirect_stdouts=False)  # as pytest has them
    with start_worker(module.app, pool="solo", perform_ping_check=False, loglevel="WARNING", shutdown_timeout=20):
        module.bill.delay(7, 3.5)
        eventually(lambda: programs.printed, what="celery has billed")
    assert programs.printed == ["billing 7: 3.50"]
    programs.printed.clear()
    await ours(programs, "from-celery", server.url)


async def test_from_taskiq(server: ServerProcess, programs: Programs) -> None:
    """The page's taskiq task and Millstream handler print the same."""
    module = programs.load("from-taskiq", "taskiq_shop", server.url)
    await module.broker.startup()
    # Ends after its task by itself: a cancelled receiver never ends if its read returns at that moment
    one = partial(taskiq.receiver.Receiver, max_tasks_to_execute=1)
    receiver = asyncio.create_task(taskiq.api.run_receiver_task(module.broker, one))
    try:
        await module.bill.kiq(7, 3.5)
        await aeventually(lambda: programs.printed)
    finally:
        await asyncio.wait([receiver], timeout=DEADLINE)
        await module.broker.shutdown()
    assert programs.printed == ["billing 7: 3.50"]
    programs.printed.clear()
    await ours(programs, "from-taskiq", server.url)


@pytest.mark.realserver
async def test_from_rq(tmp_path: Path, programs: Programs) -> None:
    """The page's RQ job and Millstream handler print the same, both on a real Redis, which RQ's worker needs."""
    with redis_server(tmp_path) as found:
        module = programs.load("from-rq", "rq_shop", found.url)
        module.order(7, 3.5)
        SimpleWorker([module.queue], connection=module.queue.connection).work(burst=True, logging_level="ERROR")
        module.queue.connection.close()
        assert programs.printed == ["billing 7: 3.50"]
        programs.printed.clear()
        module = programs.load("from-rq", "shop", found.url)
        async with module.app.running():
            await asyncio.to_thread(module.order, 7, 3.5)
            await aeventually(lambda: programs.printed)
        module.app.close_sync()
    assert programs.printed == ["billing 7: 3.50"]


def test_from_fakeredis(pytester: pytest.Pytester) -> None:
    """Both tests on the page pass as printed."""
    for name in ("test_with_fakeredis", "test_with_millstream"):
        text = block("python", f"# {name}.py", page="docs/from-fakeredis.md")
        pytester.makepyfile(**{name: text})
    pytester.makeconftest('pytest_plugins = ["millstream.testing"]')
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio").assert_outcomes(
        passed=2
    )


async def test_celerys_page_on_later_and_every_night(programs: Programs) -> None:
    """The celery page's Millstream program bills after ten minutes and closes each day once."""
    celery = programs.load("from-celery", "celery_later", WRITTEN)
    assert celery.app.conf.beat_schedule["nightly"]["task"] == celery.nightly.name
    ours = programs.load("from-celery", "later", WRITTEN)
    async with testing.run(ours.app) as broker:
        await ours.order(7)
        await broker.advance("9m")
        assert "billing 7: 3.50" not in programs.printed
        await broker.advance("1m")
        assert programs.printed.count("billing 7: 3.50") == 1
        await broker.advance("2d")
    assert programs.printed.count("closing the day") == 2
