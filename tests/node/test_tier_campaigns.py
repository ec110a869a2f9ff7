"""Nodes with packs at great length: random commands beside a node without packs, and a crash at each operation."""

import pytest

from node import test_spill_crash, test_spilling, test_vacuum
from support import campaign
from support.coldness import IS_COLD
from support.simdisk import Crash
from support.spilled import Later, small

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)

COMMANDS = 500
"""Number of commands of one run, about."""
CRASHES = [(name, crash) for name in test_spill_crash.RUNS for crash in Crash]


def commands(seed: int) -> int:
    """Run ten thousand commands with spilling, or with a vacuum too; return their number."""
    for number in range(20):
        with pytest.MonkeyPatch.context() as patch:
            small(patch)
            if number % 2:
                test_vacuum.at_random(seed * 100 + number)
            else:
                test_spilling.at_random(seed * 100 + number // 2, patch)
            Later.waiting.clear()
    return 20 * COMMANDS


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_random_commands_answer_as_without_packs() -> None:
    """Replies, restarts and replays agree over a million commands, with packs that are written, emptied and removed."""
    campaign.run("tier-commands", commands, range(1, 101), processes=2, unit="commands")


def crash_everywhere(seed: int) -> int:
    """Let a disk crash at each operation of a run, in one way; return the number of starts with cold entries."""
    name, crash = CRASHES[seed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.node.tiering.writing.SMALLEST", 600)
        small(patch)
        return test_spill_crash.crashes(crash, name, 0, 1)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_crash_at_each_operation() -> None:
    """A start finds a state of the past with all acknowledged changes, whatever operation was the last."""
    campaign.run("tier-crashes", crash_everywhere, range(len(CRASHES)), unit="starts")
