"""A module's own clock: what a test says of the time reaches that module alone, and no thread of a library's."""

import importlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def own_clock(patch: pytest.MonkeyPatch, module: str, **instead: Callable[..., Any]) -> None:
    """Let ``time`` be another in ``module`` (its dotted name), with these functions replaced.

    ``monkeypatch.setattr(module.time, ...)`` would replace them for the process: py4j's thread that tidies up sleeps
    too, once a second, and a waiting that never ends reads the same stopped clock.
    """
    patch.setattr(importlib.import_module(module), "time", SimpleNamespace(**(vars(time) | instead)))
