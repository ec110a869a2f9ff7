"""The turns in which a cluster client's users wait for its connections."""

import asyncio

from millstream.client.discovery.waiting_pool import HeldTurn, Turns


async def test_two_tasks_of_one_object_have_one_turn() -> None:
    """Two tasks that use one object at once share a turn and give it back once."""
    turns = Turns(1, patience=5)
    await turns.take()
    one = HeldTurn(turns)
    both = asyncio.gather(one.take(), one.take())
    await asyncio.sleep(0)
    turns.give()
    await asyncio.wait_for(both, 1)
    one.give()
    other = HeldTurn(turns)
    await asyncio.wait_for(other.take(), 1)
