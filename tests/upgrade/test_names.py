"""The names that programs, shells and dashboards use are those of 0.1, or more."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.source import ROOT
from support.versions import FIXTURES, Version
from upgrade import kept

RECORDED = kept.read(FIXTURES / "names.json")
OPTIONS = kept.read(FIXTURES / "options.json")

VARIABLES = (
    "MILLSTREAM_URL",
    "MILLSTREAM_REQUIREPASS",
    "MILLSTREAM_HEALTH",
    "MILLSTREAM_HEALTH_ALLOW",
    "MILLSTREAM_GRACE",
    "MILLSTREAM_LOG_LEVEL",
    "MILLSTREAM_APP_DIR",
    "MILLSTREAM_WORKER",
    "REDIS_URL",
)
"""What an environment may say, or is told."""


@pytest.fixture(scope="module")
def present(versions: dict[str, Version]) -> dict[str, Any]:
    """The present version's names."""
    words = versions["new"].python(str(Path(__file__).with_name("names.py")))
    done = subprocess.run(words, env=versions["new"].environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lost(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What was there and is not: a name, or one of the words under it."""
    found = []
    for name, words in was.items():
        if name not in now:
            found.append(name)
        else:
            found += [f"{name}: {word}" for word in words or [] if word not in (now[name] or [])]
    return found


@pytest.mark.parametrize("kind", sorted(RECORDED))
def test_no_name_is_lost(present: dict[str, Any], kind: str) -> None:
    """Public Python names and their parameters; subcommands and options; metrics, spans, log attributes."""
    assert lost(RECORDED[kind], present[kind]) == []


def test_positions_of_parameters_stay(present: dict[str, Any]) -> None:
    """What was called by position still can be: the recorded parameters keep their order."""
    for name, was in RECORDED["python"].items():
        now = [each for each in present["python"].get(name) or [] if each in (was or [])]
        assert now == (was or []), name


def test_a_lost_name_is_noticed() -> None:
    """A subcommand, an option and a metric that went are each told of."""
    was = {"a": ["--x", "--y"], "b": [], "c": None}
    assert lost(was, {"a": ["--y", "--z"], "c": None, "d": []}) == ["a: --x", "b"]


@pytest.fixture(scope="module")
def literals() -> set[str]:
    """The words that begin or are a text in the source: ``"stream"``, ``"MILLSTREAM_URL=..."``."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return {word for text in texts for word in re.findall(r"[\"'](\w+)", text)}


@pytest.mark.parametrize("names", [VARIABLES, tuple(OPTIONS)], ids=["variables", "options"])
def test_words_that_users_write_stay(literals: set[str], names: tuple[str, ...]) -> None:
    """Variables of the environment, and the options of Spark's reads and writes, are in the source."""
    assert len(names) > 5
    assert sorted(set(names) - literals) == []
