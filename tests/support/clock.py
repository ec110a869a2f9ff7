"""Clocks for tests: a clock for one module alone, and a clock that is ahead."""

import importlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.clock import Now, SystemClock


def own_clock(patch: pytest.MonkeyPatch, module: str, **instead: Callable[..., Any]) -> None:
    """Replace functions of ``time`` in one module, given by its dotted name.

    ``monkeypatch.setattr(module.time, ...)`` would replace them for the whole process. Other threads, such as py4j's
    that
    sleeps once a second, would then read the same stopped clock.
    """
    patch.setattr(importlib.import_module(module), "time", SimpleNamespace(**(vars(time) | instead)))


class Ahead:
    """Clocks some milliseconds ahead of the system's.

    Args:
        begin_ms: Wall time now, instead of the system's.
    """

    def __init__(self, begin_ms: int | None = None) -> None:
        self.ms = 0
        self._system = SystemClock()
        self.wall_ms = 0 if begin_ms is None else begin_ms - self._system.wall_time()

    def now(self) -> Now:
        wall, mono = self._system.now()
        return Now(wall + self.wall_ms + self.ms, mono + self.ms)

    def wall_time(self) -> int:
        return self._system.wall_time() + self.wall_ms + self.ms

    def mono_time(self) -> int:
        return self._system.mono_time() + self.ms
