"""Faults in the command line: ways to lose work, or to believe what a stranger wrote."""

from faults.planting import Fault

FAULTS = (
    Fault(
        "second-termination-kills",
        "SIGTERMs within two seconds are one.",
        "ending.py",
        "now - self._first > ONE_WISH",
        "now >= self._first",
        "tests/cli/test_signals.py::test_terminations_within_two_seconds_are_one",
    ),
)
