"""The name that 0.1's guide gave users goes on for one version, and says where to go."""

import importlib
import sys

import pytest

from millstream.client.dead_letter import letter


def test_the_old_name_warns_and_has_what_the_new_one_has() -> None:
    """``millstream.client.deadletter`` is the module of the letter."""
    sys.modules.pop("millstream.client.deadletter", None)
    with pytest.warns(DeprecationWarning, match="is now millstream.client.dead_letter.letter"):
        old = importlib.import_module("millstream.client.deadletter")
    assert [getattr(old, name) for name in ("DeadLetter", "dead_key", "pack", "parse_history", "unpack")] == [
        letter.DeadLetter,
        letter.dead_key,
        letter.pack,
        letter.parse_history,
        letter.unpack,
    ]
