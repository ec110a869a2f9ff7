"""A stream or a group that is not there, in the subcommands that have no test of their own for it."""

from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from support.servers import ServerProcess

MISSING = [
    (["recover", "nowhere", "--group", "g", "--min-idle", "1m", "--verdict", "release", "--url", "URL"], 2),
    (["recover", "there", "--group", "nobody", "--min-idle", "1m", "--verdict", "release", "--url", "URL"], 2),
    (["archive", "URL", "nowhere", "--to", "DIR", "--once", "--dry-run"], 2),
    (["replay", "URL", "nowhere", "--to", "URL", "--as", "again"], 2),
    (["replay", "DIR", "nowhere", "--to", "URL", "--as", "again"], 2),
    (["export", "URL", "DIR.resp", "--stream", "nowhere"], 1),
]


@pytest.mark.parametrize(("words", "code"), MISSING, ids=lambda found: found if isinstance(found, int) else found[0])
def test_what_is_not_there_is_named(
    server: ServerProcess, client: redis.Redis, tmp_path: Path, words: list[str], code: int
) -> None:
    """No traceback and no success: one sentence names what nothing has."""
    client.xadd("there", {"n": 1})
    client.xgroup_create("there", "billing", 0)
    place = str(tmp_path / "place")
    done = CliRunner().invoke(main, [word.replace("URL", server.url).replace("DIR", place) for word in words])
    assert done.exit_code == code, done.output
    assert not isinstance(done.exception, Exception)
    assert "nowhere" in done.stderr or "nobody" in done.stderr or place in done.stderr
