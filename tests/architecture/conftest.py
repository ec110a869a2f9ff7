"""Tests of the whole source, whose trees have a million objects: no garbage collection during a test."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collecting() -> Iterator[None]:
    """Disable the garbage collector, which would take four fifths of the time."""
    gc.disable()
    yield
    gc.enable()
