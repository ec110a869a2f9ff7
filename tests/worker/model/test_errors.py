"""The errors that end the loop of a subscriber."""

import pytest

from millstream.worker.model.errors import refused_read

DAMAGED = "MSDAMAGED entries 5-0 to 9-3 of 'orders' cannot be read: pack-1 is damaged at byte 4096"

PAST = (
    ". A restart does not help. Read `Damage of a pack` in docs/operations.md: put the entries back from a backup, or "
    "skip them all. First acknowledge (XACK) those that XPENDING orders billing 5-0 9-3 1000 lists. Then, only if "
    "last-delivered-id in XINFO GROUPS orders is smaller than 9-3, run XGROUP SETID orders billing 9-3; otherwise it "
    "would deliver later entries again. Then start the worker"
)


@pytest.mark.parametrize(
    ("error", "text"), [("WRONGTYPE Operation", "orders: WRONGTYPE Operation"), (DAMAGED, f"orders: {DAMAGED}{PAST}")]
)
def test_a_refused_read_names_the_way_past_damage(error: str, text: str) -> None:
    """Damaged entries end a worker at each start, so its message has the commands that skip them and nothing else."""
    assert str(refused_read("orders", "billing", ValueError(error))) == text
