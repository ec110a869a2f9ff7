"""``docs/how-to``: every command line and program on the pages runs in the situation it is about."""

import json
import re
import shlex
import signal
import sys
import time
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

from millstream import Retry
from millstream.cli.main import main
from millstream.cli.shared.output import EXIT_CODES
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.partitions.layout import described, descriptor_key, first_layout
from support.ports import free_port
from support.reader import Reader
from support.readme import block
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

PAGES = sorted((ROOT / "docs/how-to").glob("*.md"))
WEB = "docs/how-to/web-frameworks.md"
TIER_PAGE = "docs/how-to/thirty-days.md"
"""The page with a server of its own, whose lines another test runs."""
AROUND = """
from typing import Any
from millstream import App, Message, StreamSub
app = App()
"""
BAD_NEWS = "millstream check"
"""Commands whose purpose is a nonzero exit code if something is wrong."""


def lines() -> list[Any]:
    """Return every shell line on the pages, except those that start servers."""
    found = []
    for page in PAGES:
        for text in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            commands = [line.strip() for line in text.splitlines() if line.strip()]
            if page.name not in {Path(WEB).name, Path(TIER_PAGE).name}:
                found += [pytest.param(line, id=f"{page.stem}: {line}") for line in commands]
    return found


def inline() -> list[Any]:
    """Return every command line within the text, whose options are checked."""
    texts = {text for page in PAGES for text in re.findall(r"`(millstream [a-z]+ [^`]+)`", page.read_text())}
    return [pytest.param(text, id=text) for text in sorted(texts) if "..." not in text and "serve" not in text]


def something_happened(client: redis.Redis, now_ms: int) -> None:
    """Create a group with a lag, old pending entries of a dead consumer, a dead letter and partitions."""
    client.flushall()
    for number in range(1, 4):
        client.xadd("orders", {"amount": 100 * number}, id=f"{number}-0")
    for number in range(4):
        client.xadd("orders", {"amount": number}, id=f"{now_ms - 1000 + number}-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "web-1", {"orders": ">"}, count=2)
    client.xreadgroup("billing", "web-1", {"orders": "0"}, count=2)
    client.set(descriptor_key("clicks"), described(first_layout("clicks", 2, None)))
    client.xadd("clicks{1}", {"user": "u7"})
    letter: Any = DeadLetter(("amount", "x"), "orders", "1-0", "billing", "web-1", 5, "error", "E: x", "T", 1, 1001)
    client.execute_command("XADD", "orders:dead", "5-0", *pack(letter))


@pytest.mark.parametrize("line", lines())
def test_each_line_runs(
    both_servers: list[ServerProcess], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shell line on the how-to pages runs as printed on both servers and prints something."""
    monkeypatch.chdir(tmp_path)
    for number, server in enumerate(both_servers):
        with server.client() as client:
            something_happened(client, time.time_ns() // 1_000_000)
        words = shlex.split(line)
        assert words[0] == "millstream"
        if "--to" in words and words[2] == "export":
            words[-1] += str(number)
        if words[1:3] == ["group", "create"]:  # the group was lost
            with server.client() as client:
                client.xgroup_destroy(words[3], words[4])
        runner = CliRunner(env={"MILLSTREAM_URL": server.url})
        if words[2] == "resume":
            runner.invoke(main, [*words[1:2], "pause", *words[3:], "--reason", "as above"])
        if words[2] == "repartition":
            runner.invoke(main, ["stream", "partition", words[3], "4", "--by", "customer", "--yes"])
        done = runner.invoke(main, words[1:])
        assert done.exit_code == 0 or (line.startswith(BAD_NEWS) and done.exit_code in EXIT_CODES), done.output
        assert done.output


@pytest.mark.parametrize("text", inline())
def test_each_command_in_the_text_has_its_options(text: str) -> None:
    """Each command in the text of the how-to pages exists with its options."""
    words = shlex.split(text)[1:]
    command: Any = main
    while hasattr(command, "commands") or hasattr(command, "list_commands"):
        command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, text
    options = {word for one in command.params for word in one.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{page.stem}-{at}")
        for page in PAGES
        if page.name not in {Path(WEB).name, Path(TIER_PAGE).name}  # with a server in tests of their own
        for at, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    ],
)
def test_each_program_can_be_written_down(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program on the how-to pages runs up to its registration."""
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # frameworks look up the annotations of handlers there
    exec(compile(AROUND + text, "document", "exec"), vars(module))


def test_the_page_of_choices_is_right_about_retries() -> None:
    """The page of choices states the correct total time of retries."""
    page = (ROOT / "docs/how-to/what-to-choose.md").read_text()

    def total(policy: Retry, chance: float) -> float:
        return sum(policy.delay(number, chance) for number in range(1, policy.max_deliveries))

    assert total(Retry(), 1.0) == 7.5
    assert "for 8 seconds at most" in page
    minutes = [round(total(Retry(max_deliveries=20), chance) / 60) for chance in (0.0, 0.5, 1.0)]
    assert minutes == [27, 40, 54]
    assert "for 27 to 54 minutes, usually about 40" in page


def test_the_program_that_moves_a_queue_moves_it(
    both_servers: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that moves a queue moves its items in order and with any bytes."""
    for server in both_servers:
        monkeypatch.setenv("MILLSTREAM_URL", server.url)
        made: dict[str, Any] = {"__name__": "document"}
        text = block("python", "# move_queue.py", page="docs/how-to/lists-and-pubsub.md")
        exec(compile(text, "document", "exec"), made)
        with server.client() as client:
            client.flushall()
            client.lpush("jobs", b"one", b"two", b"\xff")
            assert made["move"](client, "jobs", "orders") == 3
            assert [fields[b"data"] for _, fields in client.xrange("orders")] == [b"one", b"two", b"\xff"]
            assert client.llen("jobs") == 0


# ------------------------------------------------------------------ web frameworks


def post(url: str, item: str) -> str:
    """Order one item and return the id of its entry."""
    body = json.dumps({"item": item}).encode()
    asked = urllib.request.Request(f"{url}/orders", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.status == 202
        found: dict[str, str] = json.load(answer)
        return found["entry"]


@pytest.fixture
def reader(both_servers: list[ServerProcess], tmp_path: Path) -> Reader:
    """Return a reader with an empty folder and a Millstream server."""
    with both_servers[0].client() as client:
        client.flushall()
    return Reader(tmp_path, both_servers[0].url, DJANGO_SETTINGS_MODULE="shop.settings")


@pytest.mark.parametrize("name", ["web_fastapi", "web_litestar"])
def test_a_framework_publishes_and_works_in_one_process(reader: Reader, name: str) -> None:
    """In the FastAPI and Litestar programs, a request becomes an entry that the same process handles."""
    page = WEB if name == "web_fastapi" else "docs/how-to/litestar.md"
    (reader.folder / f"{name}.py").write_text(block("python", f"# {name}.py", page=page))
    url = f"http://127.0.0.1:{(port := free_port())}"
    with reader.starts(f"uvicorn {name}:web --port {port}", "web.log") as (running, log):
        entry = eventually(lambda: post(url, "tea"), what="uvicorn answers")
        assert entry.endswith(("-0", "-1"))

        def finished() -> bool:
            with urllib.request.urlopen(f"{url}/done", timeout=10) as answer:
                return bool(json.load(answer) == ["tea"])

        eventually(finished, what="the tea is billed")
        running.send_signal(signal.SIGTERM)
        running.wait(timeout=30)
        assert "Application shutdown complete" in log.read_text()


def test_flask_publishes_and_a_worker_has_its_application(reader: Reader) -> None:
    """The Flask program publishes, and its worker runs handlers within the application's context."""
    (reader.folder / "web_flask.py").write_text(block("python", "# web_flask.py", page=WEB))
    served, worked = block("sh", "flask --app", page=WEB).splitlines()
    port = free_port()
    with reader.starts(served.replace("8000", str(port)), "web.log"), reader.runs(worked) as log:
        eventually(lambda: post(f"http://127.0.0.1:{port}", "tea"), what="Flask answers")
        eventually(lambda: "billing tea in EUR" in log.read_text(), what="the tea is billed")


SETTINGS = """
SECRET_KEY = "x"
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite"}}
"""
URLS = 'from django.urls import path\nfrom shop.views import order\nurlpatterns = [path("orders", order)]\n'


def test_django_publishes_and_a_worker_uses_its_models(reader: Reader) -> None:
    """The Django program publishes, and its worker's handler writes to the project's database."""
    shop = reader.folder / "shop"
    shop.mkdir()
    for name, text in {
        "__init__.py": "",
        "settings.py": SETTINGS,
        "urls.py": URLS,
        "events.py": block("python", "# shop/events.py", page=WEB),
        "views.py": block("python", "# shop/views.py", page=WEB),
    }.items():
        (shop / name).write_text(text)
    reader.types("django-admin migrate")
    worked = block("sh", "DJANGO_SETTINGS_MODULE", page=WEB).splitlines()[1]
    port = free_port()
    with reader.starts(f"django-admin runserver --noreload {port}", "web.log"), reader.runs(worked) as log:
        eventually(lambda: post(f"http://127.0.0.1:{port}", "tea"), what="Django answers")
        eventually(lambda: "billing tea" in log.read_text(), what="the tea is billed")
    assert "tea" in reader.types(
        "django-admin shell -c 'from django.contrib.auth.models import Group; print(Group.objects.all())'"
    )


def test_the_table_names_every_page() -> None:
    """The table of how-to pages names every page, and none has more than 165 lines."""
    table = (ROOT / "docs/how-to/README.md").read_text()
    assert {page.name for page in PAGES} - {"README.md"} <= set(re.findall(r"\(([a-z-]+\.md)\)", table))
    assert all(len(page.read_text().splitlines()) <= 165 for page in PAGES)
