"""The turns by which users of a cluster's client wait for its connections."""

import asyncio

from millstream.client.discovery.waiting_pool import HeldTurn, Turns


async def test_two_tasks_of_one_object_have_one_turn() -> None:
    """An object that two tasks begin to use at once takes one turn, and gives one back."""
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
