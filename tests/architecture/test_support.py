"""Shared helpers keep their word: a deadline fails, a missing program skips or fails, servers are empty."""

import pytest

from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually, eventually


def test_eventually_fails_when_the_condition_never_comes() -> None:
    """A wait that could not fail would make every test that uses it worthless."""
    with pytest.raises(AssertionError, match="the sun rises"):
        eventually(lambda: False, 0.01, what="the sun rises")


async def test_aeventually_waits_for_plain_and_async_probes() -> None:
    """Both kinds of probe are asked again until they are true, and their value is returned."""
    answers = [0, 0, 7]

    async def probe() -> int:
        return answers.pop(0)

    assert await aeventually(probe) == 7
    with pytest.raises(AssertionError):
        await aeventually(lambda: 0, 0.01)


def test_missing_program_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A green CI run must never mean "nothing was tested"."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        needs.program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        needs.program("no-such-program")


@pytest.mark.realserver
def test_real_redis_starts_empty(real_redis: ServerProcess) -> None:
    """Tests against a real server do not see each other's keys."""
    with real_redis.client() as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


@pytest.mark.realserver
def test_real_redis_is_emptied_between_tests(real_redis: ServerProcess) -> None:
    """The key that the test above left behind is gone."""
    with real_redis.client() as client:
        assert client.get("left") is None
