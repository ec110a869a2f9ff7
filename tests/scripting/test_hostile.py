"""Hostile scripts in a separate process: it survives, they end in time, and they leave nothing behind."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripting import hostile
from support import campaign

CHILD = Path(__file__).parent / "child.py"
LIMIT = 30
"""Time limit of a script in milliseconds."""
SLOWEST = 5.0
"""Maximum processor time of a script in seconds: two hundred times its limit, for slow machines."""
# So many scripts to a process: one that ends it is soon found
EACH = 100


def answers(scripts: Sequence[str], limit: int = LIMIT) -> list[str]:
    """Return the replies to scripts run in one process, which must be alive at the end."""
    child = subprocess.run(
        [sys.executable, str(CHILD), str(limit)],
        input=json.dumps(list(scripts)) + "\n",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])
    told = json.loads(child.stdout)
    assert told["left_by"] is None, told["left_by"]
    assert told["slowest"] < SLOWEST
    broken = [reply for reply in told["replies"] if "internal error" in reply or "in Lua:" in reply]
    assert not broken, (broken, child.stderr[-2000:])
    return list(told["replies"])


@pytest.mark.timeout(300)
def test_scripts_known_to_end_a_server_or_to_hold_it_do_neither() -> None:
    """Each Lua script of a known attack ends in time, and changes nothing for the next script."""
    replies = answers(hostile.KNOWN)
    assert len(replies) == len(hostile.KNOWN)
    told = dict(zip(hostile.KNOWN, replies, strict=True))
    for script in hostile.KNOWN:
        if "while true do" in script and "wild" not in script and "setmetatable" not in script:
            assert told[script].startswith(("-ERR Script stopped after", "-ERR not enough memory")), (
                script,
                told[script],
            )


def fuzz(seed: int, count: int) -> int:
    """Run that many generated scripts, check that none does harm, and return their number."""
    first = seed * 1_000_000
    for start in range(first, first + count, EACH):
        numbers = range(start, min(start + EACH, first + count))
        try:
            answers([hostile.script(number) for number in numbers])
        except AssertionError as failure:
            raise AssertionError(f"scripting.hostile.script of {numbers}") from failure
    return count


@pytest.mark.timeout(300)
def test_scripts_made_at_random_do_no_harm() -> None:
    """200 random Lua scripts with unsuitable arguments cause no crash and leave nothing behind."""
    fuzz(1, 200)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_scripts_made_at_random_do_no_harm() -> None:
    """60,000 random Lua scripts with unsuitable arguments cause no crash and leave nothing behind."""
    campaign.run("hostile-scripts", piece, range(2, 62), unit="scripts")


def piece(seed: int) -> int:
    """Run one piece of the campaign."""
    return fuzz(seed, 1000)


@pytest.mark.parametrize("parameters", [6, 50, 100])
def test_missing_arguments_of_a_vararg_function_fit_on_the_stack(parameters: int) -> None:
    """A vararg function without arguments does not write beyond Lua's stack (CVE-2014-5461)."""
    assert answers([hostile.vararg(parameters, 300)], limit=5000) == ["$4\r\nfine\r\n"]
