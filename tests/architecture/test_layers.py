"""The import rules of ARCHITECTURE.md, each with a violation that it finds."""

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support import layers
from support.source import ROOT, Module, modules

Rule = Callable[[Iterable[Module]], list[str]]

RULES: list[Rule] = [
    layers.layering,
    layers.unknown_parts,
    layers.ops_reads,
    layers.impure,
    layers.asyncio_outside_the_shells,
    layers.third_party,
    layers.unpickling,
    layers.connecting,
    layers.wide_folders,
    layers.worn_names,
]


@pytest.fixture(scope="module")
def source() -> list[Module]:
    """Parse the modules of the source once for all rules of this file."""
    return modules(ROOT / "src")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source_keeps_the_rule(rule: Rule, source: list[Module]) -> None:
    """No module imports, calls or connects against the rules of ARCHITECTURE.md."""
    assert len(source) > 20
    assert rule(source) == []


@pytest.mark.parametrize("rule", [layers.file_circles, layers.room_circles], ids=lambda rule: rule.__name__)
def test_imports_go_one_way(rule: Rule, source: list[Module]) -> None:
    """The source has no circular imports between modules or folders."""
    assert rule(source) == []


CIRCLES = [
    ({"a/x/m.py": "from millstream.a.y.n import f", "a/y/n.py": "from millstream.a.x import m"}, 1, 1),
    ({"a/x/m.py": "from millstream.a.y.n import f", "a/y/o.py": "from millstream.a.x import m", "a/y/n.py": ""}, 0, 1),
    ({"a/x/m.py": "from millstream.a.x import n", "a/x/n.py": "from millstream.a.x.m import f"}, 1, 0),
    ({"a/m.py": "import millstream.a.n", "a/n.py": "def f():\n    from millstream.a import m\n"}, 1, 1),
    ({"a/m.py": "import millstream.a.n", "a/n.py": "if TYPE_CHECKING:\n    from millstream.a.m import M\n"}, 1, 1),
    ({"a/x/m.py": "from millstream.a.y.n import f", "a/y/n.py": ""}, 0, 0),
]


@pytest.mark.parametrize(("files", "by_file", "by_room"), CIRCLES)
def test_rule_sees_a_planted_circle(tmp_path: Path, files: dict[str, str], by_file: int, by_room: int) -> None:
    """The rules find planted circles, also by deferred imports, by imports for types, and between folders alone."""
    for name, text in files.items():
        path = tmp_path / "src/millstream" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    source = modules(tmp_path / "src")
    assert len(layers.file_circles(source)) == by_file
    assert len(layers.room_circles(source)) == by_room


def test_rule_sees_a_folder_that_is_too_wide(tmp_path: Path) -> None:
    """The rule finds a folder of more than 15 modules."""
    (tmp_path / "src/millstream").mkdir(parents=True)
    for number in range(15):
        (tmp_path / f"src/millstream/m{number}.py").touch()
    assert layers.wide_folders(modules(tmp_path / "src")) == []
    (tmp_path / "src/millstream/m15.py").touch()
    assert layers.wide_folders(modules(tmp_path / "src")) == ["src/millstream: 16 modules"]


def test_rule_sees_a_name_of_too_many_files(tmp_path: Path) -> None:
    """The rule finds a file name that more than four modules share, except the fixed names of ``ops``."""
    for number in range(5):
        for name in ("a", "reading"):
            path = tmp_path / f"src/millstream/p{number}/{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    source = modules(tmp_path / "src")
    assert layers.worn_names(source) == ["a.py: 5 modules"]
    assert layers.worn_names(source[:8]) == []


# rule, file under src/, its text, how many violations
PLANTED: list[tuple[Rule, str, str, int]] = [
    (layers.layering, "millstream/engine/x.py", "from millstream.commands import table", 1),
    (layers.layering, "millstream/engine/x.py", "from ..commands.table import TABLE", 1),
    (layers.layering, "millstream/commands/x.py", "import millstream.node.node", 1),
    (layers.layering, "millstream/commands/x.py", "from millstream.persistence import log", 1),
    (layers.layering, "millstream/node/x.py", "def f():\n    from millstream.server import app\n", 1),
    (layers.layering, "millstream/protocol/x.py", "from millstream.engine.ids import StreamID", 1),
    (layers.layering, "millstream/persistence/x.py", "from millstream.engine import keyspace", 1),
    (layers.layering, "millstream/worker/x.py", "from millstream.server import app", 1),
    (layers.layering, "millstream/spark/x.py", "import importlib\nimportlib.import_module('millstream.node')", 1),
    (layers.layering, "millstream/ops/x.py", "from millstream.engine.streams.stream import Stream", 1),
    (layers.layering, "millstream/ops/x.py", "from millstream.web.page import Asked", 1),
    (layers.ops_reads, "millstream/ops/x.py", "from millstream.worker import app", 1),
    (layers.ops_reads, "millstream/web/x.py", "from millstream.worker import app", 1),
    (layers.impure, "millstream/ops/pending/status.py", "from millstream.ops.pending.reading import pages", 1),
    (layers.ops_reads, "millstream/ops/x.py", "from millstream.spark.source import MillstreamSource", 1),
    (layers.ops_reads, "millstream/ops/x.py", "from millstream.worker.registry import protocol", 0),
    (layers.layering, "millstream/cli/server/serve.py", "from millstream.worker import app", 1),
    (layers.layering, "millstream/cli/worker/run.py", "from millstream.worker import app", 0),
    (layers.layering, "millstream/clock.py", "from millstream import errors, engine", 1),
    (layers.layering, "pyspark_millstream/__init__.py", "from millstream.client.connect import sync_client", 1),
    (
        layers.layering,
        "millstream/engine/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from millstream.node import node\n",
        1,
    ),
    (
        layers.layering,
        "millstream/commands/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from millstream.node.host import NodeHost\n",
        1,
    ),
    (layers.layering, "millstream/commands/x.py", "from millstream.node.host import NodeHost", 1),
    (layers.layering, "millstream/engine/x.py", "from millstream import App", 1),
    (layers.layering, "millstream/cli/worker/run.py", "from millstream import App", 0),
    (layers.layering, "millstream/server/x.py", "from millstream import __version__", 0),
    (layers.unknown_parts, "millstream/bridge/x.py", "", 1),
    (layers.unknown_parts, "millstream/cli/sing.py", "", 1),
    (layers.impure, "millstream/engine/x.py", "import time", 1),
    (layers.impure, "millstream/engine/x.py", "from os import path", 1),
    (layers.impure, "millstream/worker/model/retry.py", "import random", 1),
    (layers.impure, "millstream/worker/model/lifecycle.py", "from millstream.worker.subscriber.loop import Loop", 1),
    (layers.impure, "millstream/worker/model/lifecycle.py", "from millstream.worker.model.retry import Retry", 0),
    (layers.impure, "millstream/spark/model/offsets.py", "from datetime import datetime\ndatetime.now()", 1),
    (layers.impure, "millstream/spark/model/offsets.py", "import datetime\ndatetime.datetime.utcnow()", 1),
    (layers.impure, "millstream/spark/model/offsets.py", "class Clock: ...\ndef f(c): return c.now()", 0),
    (layers.impure, "millstream/engine/x.py", "def f(): return open('x')", 1),
    (layers.impure, "millstream/engine/x.py", "from millstream.clock import SystemClock", 1),
    (layers.impure, "millstream/engine/x.py", "from millstream.clock import Now", 0),
    (layers.impure, "millstream/worker/subscriber/loop.py", "import time", 0),
    (layers.asyncio_outside_the_shells, "millstream/node/x.py", "import asyncio", 1),
    (layers.asyncio_outside_the_shells, "millstream/server/x.py", "import asyncio", 0),
    (layers.third_party, "millstream/worker/x.py", "import pyspark.sql", 1),
    (layers.third_party, "millstream/client/x.py", "import requests", 1),
    (layers.third_party, "millstream/server/x.py", "import redis", 1),
    (layers.third_party, "millstream/spark/x.py", "import pyarrow as pa", 0),
    (layers.unpickling, "millstream/persistence/x.py", "from pickle import loads", 1),
    (layers.connecting, "millstream/worker/x.py", "import redis\nredis.asyncio.Redis(host='h')", 1),
    (layers.connecting, "millstream/spark/x.py", "from redis import Redis\nRedis.from_url('redis://h')", 1),
    (layers.connecting, "millstream/client/x.py", "import redis\nredis.Redis(host='h')", 0),
]


@pytest.mark.parametrize(("rule", "file", "text", "count"), PLANTED)
def test_rule_sees_a_planted_violation(tmp_path: Path, rule: Rule, file: str, text: str, count: int) -> None:
    """Each import rule finds a planted violation, and accepts similar code that is allowed."""
    path = tmp_path / "src" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = rule(modules(tmp_path / "src"))
    assert len(found) == count, found
    assert all(line.startswith(f"src/{file}") for line in found)


def test_every_package_imported_is_declared() -> None:
    """Each imported package is declared in the dependencies of its extra, and the core has no heavy ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {extra: {re.split(r"[^\w-]", line)[0] for line in lines} for extra, lines in declared.items()}
    for package, (_, extra) in layers.THIRD_PARTY.items():
        distribution = layers.DISTRIBUTIONS.get(package, package.replace("_", "-"))
        assert distribution in names[extra], f"{package} is not in extra {extra or 'core'!r}"
    assert names[""] == {package for package, (_, extra) in layers.THIRD_PARTY.items() if extra == ""}


def test_parts_are_those_of_the_architecture() -> None:
    """The folders of the source are those in ARCHITECTURE.md."""
    folders = {path.name for path in (ROOT / "src/millstream").iterdir() if (path / "__init__.py").exists()}
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert folders == set(layers.MAY_IMPORT) - layers.LEAVES - {"", layers.COMPILED}
    assert [folder for folder in sorted(folders) if f"{folder}/" not in text] == []
