"""A stream answers the same whether its entries are hot or cold, and with both cores, after any transitions.

A longer campaign (`make test-long`): a million steps, see ``support.campaign``.
"""

import pytest

from engine.four_twins import FourTwins
from support import campaign

LIVES = 10
"""Number of streams of a piece of the campaign."""
LIFE = 500
"""Number of steps of each of these streams."""


def live(seed: int, steps: int, every: int) -> None:
    """Run random steps on four streams, and compare after some of them."""
    twins = FourTwins(seed)
    for at in range(steps):
        twins.step()
        if at % every == every - 1:
            twins.compare()


@pytest.mark.parametrize("seed", range(16))
def test_random_steps(seed: int) -> None:
    """Replies, nodes, groups, dumps, trimming and the extents themselves are the same in all four."""
    live(seed, 400, 10)


def five_thousand_steps(seed: int) -> int:
    """Run a piece of the campaign."""
    for at in range(LIVES):
        live(1000 * seed + at, LIFE, 25)
    return LIVES * LIFE


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_random_steps_lead_to_the_same() -> None:
    """Hot and cold streams of both cores are equal after a million random steps, with vacuums and deliveries."""
    campaign.run("four-twins", five_thousand_steps, range(1, 201), processes=2, unit="steps")
