"""The benchmarks' page shows the measured results: it is generated from them and not edited."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import hiredis
import pytest
from bench.server import cases, goals, page, pictures
from bench.server.__main__ import main
from bench.tier import curves as tier_curves

from support.inprocess import World
from support.source import ROOT


def test_the_page_says_what_was_measured() -> None:
    """The tables and pictures of the benchmarks' page are those of the recorded results."""
    results = json.loads(page.RESULTS.read_text())
    text = page.PAGE.read_text()
    assert page.rewritten(text, results) == text
    assert "not measured" not in page.section(results)
    curves = results["curves"]["found"]
    assert {path.name for path in page.PICTURES.glob("*.svg")} == {pictures.file_name(name) for name in curves}
    for name, by_size in curves.items():
        assert (page.PICTURES / pictures.file_name(name)).read_text() == pictures.picture(name, by_size)
    assert page.placed(text, tier_curves.BEGIN, tier_curves.section(results)) == text
    curves = results[tier_curves.PART]["found"]
    assert {path.name for path in tier_curves.PICTURES.iterdir()} == {pictures.file_name(name) for name in curves}
    for name, found in curves.items():
        assert (tier_curves.PICTURES / pictures.file_name(name)).read_text() == tier_curves.picture(name, found)


def test_every_goal_is_of_cases_that_are_measured() -> None:
    """Every goal names measured cases, and a short run has a case for each goal."""
    names = {case.name for case in cases.CASES}
    named = {name for goal in goals.GOALS for name in goal.cases}
    assert named - names == set()
    assert cases.QUICK - names == set()
    assert [goal.name for goal in goals.GOALS if not cases.QUICK & set(goal.cases)] == []


def test_a_place_that_takes_no_results_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark refuses an output path in a missing folder before it measures."""
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--only", "memory", "--output", str(tmp_path / "none/x.json")])
    monkeypatch.setenv("PATH", "")  # nothing to measure with, so what does not refuse ends here too
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"the folder {tmp_path / 'none'} does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--entries", "--rounds"])
def test_nothing_to_measure_is_refused(option: str) -> None:
    """The worker benchmark refuses an option of zero with one line before it starts servers."""
    words = [sys.executable, "bench/worker.py", option, "0", "--only", "throughput"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert f"argument {option}: 0 is none: at least 1" in found.stderr


def test_each_axis_of_a_curve_has_its_name() -> None:
    """Each axis of a drawn curve has the name of its quantity."""
    rounds = {"redis-server": [{"micros": 1.0}], "native core": [{"micros": 2.0}]}
    drawn = pictures.picture("XADD by length of the stream", {"1000": rounds, "3000": rounds})
    names = re.findall(r'class="axis"[^>]*>([^<]+)<', drawn)
    assert names == ["length of the stream", "processor time of one command"]


def test_a_goal_is_reached_by_its_slowest_command() -> None:
    """A goal of several commands is judged by the worst ratio, and commands without a measurement are reported."""

    def rounds(micros: float, rate: float) -> dict[str, list[dict[str, float]]]:
        return {"redis-server": [{"micros": 1.0, "rate": 100}], "native core": [{"micros": micros, "rate": rate}]}

    found = {"SET by 16": rounds(1.0, 100), "GET by 16": rounds(0.5, 50), "PING by 16": rounds(2.0, 100)}
    row = next(row for row in goals.rows({"cases": {"found": found}}) if row[0].startswith("SET"))
    assert row[2] == "not reached: 0.50, rate 0.50"
    assert row[4] == "not measured"
    found["PING by 16"] = rounds(1.0, 100)
    row = next(row for row in goals.rows({"cases": {"found": found}}) if row[0].startswith("SET"))
    assert row[2] == "**reached** by processor time: 1.00, rate 0.50"


def test_reading_a_group_finds_entries_in_every_run() -> None:
    """Each run of the group benchmark reads ten entries per command, also after an interrupted run."""
    one = World(logged=False).client()
    length = len(list(cases.lanes_read())) // cases.LANES
    for command in commands_of(itertools.islice(cases.lanes_ready(), cases.ENTRIES // cases.LANES + 2)):
        one.call(*command)
    block = commands_of(itertools.islice(cases.lanes_read(), length))
    for run in (block[: length // 2], block):
        replies = [one.call(*command) for command in run]
        read = [len(reply[0][1]) for command, reply in zip(run, replies, strict=True) if command[0] == b"XREADGROUP"]
        assert set(read) == {10}
        assert {reply for command, reply in zip(run, replies, strict=True) if command[0] == b"XACK"} == {10}


def commands_of(packed: Iterable[bytes]) -> list[list[bytes]]:
    """Convert packed commands to words."""
    reader = hiredis.Reader()
    reader.feed(b"".join(packed))
    return list(iter(reader.gets, False))
