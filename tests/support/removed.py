"""Tests of files that were removed while a program has them open."""

import sys

import pytest

SHOWS_REMOVED = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux shows open files that were removed, by /proc"
)
"""Marks a test that needs the open file of a removed name."""
