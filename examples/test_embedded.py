"""Test a worker without a server and without waiting: ``pytest test_embedded.py``."""

import asyncio

from millstream.worker.testing import run
from shop import app


async def deliver(price: str) -> tuple[int, int]:
    """Publish one order, let a minute pass on the test's clock, and count pending entries and dead letters."""
    async with run(app, raise_errors=False) as broker:
        await broker.publish("orders", {"item": "tea", "price": price})
        await broker.advance("1m")
        return broker.client.xpending("orders", "billing")["pending"], broker.client.xlen("orders:dead")


def test_an_order_is_billed() -> None:
    assert asyncio.run(deliver("3")) == (0, 0)


def test_a_negative_price_becomes_a_dead_letter() -> None:
    assert asyncio.run(deliver("-3")) == (0, 1)
