"""docs/promises.md is generated from its data, and every test it names exists."""

import ast
import contextlib
import importlib.util
import json
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from persistence.test_crash import WAYS
from support import campaign
from support.simdisk import Crash
from support.source import ROOT


def script() -> ModuleType:
    """Load the generator."""
    specification = importlib.util.spec_from_file_location("promises", ROOT / "scripts/promises.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


PROMISES = script()
ALL: list[dict[str, Any]] = [promise for part in PROMISES.parts() for promise in part["promise"]]


def test_the_page_is_what_its_data_says() -> None:
    """docs/promises.md is what ``make docs`` generates."""
    assert PROMISES.PAGE.read_text() == PROMISES.page(PROMISES.load_figures())


def exists(test: str) -> bool:
    """Return True if a file, or a test function in a file, exists."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and (not name or name in functions_of(file))


@cache
def functions_of(file: str) -> frozenset[str]:
    """Return the names of a file's functions, cached, since many promises name the same file."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_promise_names_tests_that_exist() -> None:
    """Every promise names an existing test or benchmark, or is marked as never tested."""
    assert [p["says"] for p in ALL if not p.get("small") and not {"never", "measured"} & set(p)] == []
    benches = [promise["measured"] for promise in ALL if "measured" in promise]
    told = (ROOT / "docs/benchmarks.md").read_text()
    assert [bench for bench in benches if not (ROOT / bench).is_file() or bench not in told] == []
    named = [test for promise in ALL for key in ("small", "long") for test in promise.get(key, [])]
    assert [test for test in named if not exists(test)] == []
    assert not exists("tests/none.py")
    assert not exists("tests/architecture/test_promises.py::test_none")


def test_every_figure_belongs_to_a_promise() -> None:
    """Every campaign's figure is shown by some promise."""
    patterns = [pattern for promise in ALL for pattern in promise.get("campaigns", [])]
    figures = PROMISES.load_figures()
    assert [name for name in figures if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_a_campaign_that_is_gone_leaves_no_figure() -> None:
    """The figures of a removed campaign are dropped, although its record may stay in a checkout."""
    known = PROMISES.load_figures()
    assert PROMISES.promised(known | {"long-gone": {}}) == known


def test_figures_are_taken_over_from_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of a campaign's last whole run are taken from its records, and summed over several records."""
    last = {"pieces": 2, "count": 1000, "unit": "kills", "seconds": 9.6, "commit": "abc", "day": "2026-01-02"}
    monkeypatch.setattr(PROMISES, "RECORDS", tmp_path)
    (tmp_path / "kills-1.json").write_text(json.dumps({"last": last}))
    (tmp_path / "kills-2.json").write_text(json.dumps({"last": last | {"day": "2026-01-01"}}))
    (tmp_path / "of-an-older-kind.json").write_text(json.dumps({"done": [1]}))
    older = last | {"count": 7, "day": "2025-01-01"}
    figures = PROMISES.gathered({"kills-1": older, "other": older})
    assert figures == {"kills-1": last, "kills-2": last | {"day": "2026-01-01"}, "other": older}
    told = PROMISES.last_figure({"campaigns": ["kills-*", "none"], "number": {"kills-*": 3}}, figures)
    whole = "2,000 kills in 2 of 3 campaigns, 19 s, 2026-01-01 to 2026-01-02, abc"
    assert told == f"`kills-*`: {whole}; 1 never run; `none`: never run"
    told = PROMISES.last_figure({"campaigns": ["other"], "never": "Not tested: x."}, figures)
    assert told == "`other`: 7 kills, 10 s, 2025-01-01, abc. Not tested: x."


def test_how_far_an_interrupted_campaign_is_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the progress of an interrupted campaign, then its whole run, and a failure in any case."""
    monkeypatch.setattr(PROMISES, "RECORDS", tmp_path)
    monkeypatch.delenv("MILLSTREAM_FRESH", raising=False)
    monkeypatch.delenv("MILLSTREAM_SEED", raising=False)
    monkeypatch.setattr(campaign, "uncaptured", contextlib.nullcontext)

    def told(stop: int, error: type[BaseException]) -> str:
        def piece(seed: int) -> int:
            if seed == stop:
                raise error
            return 500

        with contextlib.suppress(error):
            campaign.run("x", piece, range(1, 5), folder=tmp_path, unit="crashes")
        text = PROMISES.last_figure({"campaigns": ["x"]}, PROMISES.gathered({}))
        return re.sub(r", \d+ s, [\d-]+, \w*", "", text)

    assert told(3, KeyboardInterrupt) == "`x`: begun, 2 of 4 pieces: 1,000 crashes, no failure"
    assert told(3, ValueError) == "`x`: begun, 2 of 4 pieces: 1,000 crashes, stopped at a failure"
    assert told(4, KeyboardInterrupt) == "`x`: begun, 3 of 4 pieces: 1,500 crashes, no failure"
    assert told(5, ValueError) == "`x`: 2,000 crashes"
    assert told(2, KeyboardInterrupt) == "`x`: 2,000 crashes; another begun, 1 of 4 pieces: 500 crashes, no failure"


def test_the_number_of_campaigns_of_one_name_is_right() -> None:
    """The number of campaigns under one name is right, so that the page can show which were never run."""
    (one,) = (promise for promise in ALL if "crash-*" in promise.get("campaigns", []))
    assert one["number"]["crash-*"] == len(Crash) * len(WAYS)
    patterns = {pattern for promise in ALL for pattern in promise.get("campaigns", []) if "*" in pattern}
    assert {pattern for promise in ALL for pattern in promise.get("number", {})} == patterns
