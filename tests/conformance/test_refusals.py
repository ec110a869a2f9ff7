"""``maxmemory``: each command is refused or runs as it did on a recorded Redis, at the same point of the checks."""

import json

import pytest

from conformance.refusals import PLACES, RECORDED, Both, replies
from millstream.server.thread import ServerThread

KNOWN = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("place", PLACES)
def test_replies_without_memory_are_the_recorded_ones(place: str) -> None:
    """Without free memory, each command, transaction and script gets the reply that Redis gave."""
    with ServerThread() as server:
        both = Both(server.url)
        try:
            found = [list(each) for each in replies(both, place)]
        finally:
            both.close()
    assert found == KNOWN[place]
