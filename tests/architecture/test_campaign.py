"""Long campaigns: an interrupted one continues, a finished one starts over, a failure shows how to repeat it."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from support import campaign


def odd(seed: int) -> None:
    """Fail for even seeds; another process can run this piece."""
    if seed % 2 == 0:
        raise ValueError(f"{seed} is even")


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the tested campaigns from the environment's settings, and from the output of the test run."""
    monkeypatch.setattr(campaign, "uncaptured", nullcontext)
    monkeypatch.setattr(campaign, "watched", True)
    monkeypatch.delenv("MILLSTREAM_SEED", raising=False)
    monkeypatch.delenv("MILLSTREAM_FRESH", raising=False)


def test_goes_on_where_it_stopped_and_begins_anew_when_done(tmp_path: Path) -> None:
    """After a failure, a campaign continues with the failed piece. After the last piece, the next run has them all."""
    ran: list[int] = []
    broken = {3}

    def piece(seed: int) -> None:
        ran.append(seed)
        if seed in broken:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        campaign.run("x", piece, range(1, 6), folder=tmp_path)
    assert ran == [1, 2, 3]
    broken.clear()
    campaign.run("x", piece, range(1, 6), folder=tmp_path)
    assert ran == [1, 2, 3, 3, 4, 5]
    assert json.loads((tmp_path / "x.json").read_text())["last"]["pieces"] == 5
    campaign.run("x", piece, range(1, 6), folder=tmp_path)
    assert ran[6:] == [1, 2, 3, 4, 5]


def test_the_last_whole_run_is_kept_with_its_count(tmp_path: Path) -> None:
    """The counts of pieces are summed over interruptions and kept with time, day and commit."""
    broken = {3}

    def piece(seed: int) -> int:
        if seed in broken:
            raise ValueError("broken")
        return 10 * seed

    with pytest.raises(ValueError, match="broken"):
        campaign.run("x", piece, range(1, 4), folder=tmp_path, unit="crashes")
    broken.clear()
    for _ in range(2):
        campaign.run("x", piece, range(1, 4), folder=tmp_path, unit="crashes")
        last = json.loads((tmp_path / "x.json").read_text())["last"]
        assert (last["pieces"], last["count"], last["unit"]) == (3, 60, "crashes")
        assert {"seconds", "commit", "day"} <= set(last)


@pytest.mark.parametrize("kept", ['{"version": 1, "seconds": 9, "done": [1, 2]}', "half a fi", "[]", None])
def test_another_version_or_a_broken_record_starts_over(tmp_path: Path, kept: str | None) -> None:
    """A record of another version, or a damaged one, starts the campaign over."""
    if kept is not None:
        (tmp_path / "x.json").write_text(kept)
    ran: list[int] = []
    campaign.run("x", ran.append, range(1, 4), version=2, folder=tmp_path)
    assert ran == [1, 2, 3]


def test_pieces_that_come_are_run_and_one_that_goes_starts_it_over(tmp_path: Path) -> None:
    """New pieces of a campaign run next to recorded ones. A removed piece starts it over."""
    (tmp_path / "x.json").write_text(
        '{"version": 1, "seconds": 9, "count": 2, "done": [10, 20], "last": {"pieces": 7}}'
    )
    ran: list[int] = []

    def piece(seed: int) -> None:
        ran.append(seed)
        if seed == 40:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        campaign.run("x", piece, [30, 20, 40, 10], folder=tmp_path)
    assert ran == [30, 40]
    kept = json.loads((tmp_path / "x.json").read_text())
    assert (kept["done"], kept["count"], kept["last"]) == ([10, 20, 30], 3, {"pieces": 7})
    campaign.run("x", ran.append, [30, 20, 50], folder=tmp_path)
    assert ran[2:] == [30, 20, 50]
    assert json.loads((tmp_path / "x.json").read_text())["last"]["count"] == 3


def test_wishes_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MILLSTREAM_FRESH starts a campaign over. MILLSTREAM_SEED runs one piece and keeps the record."""
    (tmp_path / "x.json").write_text('{"version": 1, "seconds": 9, "done": [1, 2]}')
    ran: list[int] = []
    monkeypatch.setenv("MILLSTREAM_SEED", "7")
    campaign.run("x", ran.append, range(1, 4), folder=tmp_path)
    assert ran == [7]
    monkeypatch.delenv("MILLSTREAM_SEED")
    monkeypatch.setenv("MILLSTREAM_FRESH", "1")
    campaign.run("x", ran.append, range(1, 4), folder=tmp_path)
    assert ran == [7, 1, 2, 3]


def test_several_processes(tmp_path: Path) -> None:
    """Pieces in several processes are recorded in the same way, and their failures are reported."""
    campaign.run("x", odd, range(1, 9, 2), processes=2, folder=tmp_path)
    with pytest.raises(ValueError, match="4 is even"):
        campaign.run("x", odd, range(1, 5, 3), processes=2, folder=tmp_path)
    assert json.loads((tmp_path / "x.json").read_text())["done"] in ([1], [])


def test_a_failure_says_how_to_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed piece prints one line with the command to repeat it."""
    told: list[str] = []
    monkeypatch.setattr(campaign, "tell", lambda name, text: told.append(f"{name}: {text}"))
    with pytest.raises(ValueError, match="2 is even"):
        campaign.run("x", odd, range(1, 4), folder=tmp_path)
    assert told[0] == "x: 3 of 3 pieces to do"
    assert told[1].startswith("x: 1 of 3 pieces in 0 s, about 0 s more")
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
    assert told[2] == f"x: failed with seed 2; repeat it with: MILLSTREAM_SEED=2 make test-long ARGS='{test}'"
