"""Scripts on Millstream and on a running redis-server: the same replies, in RESP2 and RESP3, one after another.

``BEFORE`` and ``SINCE`` list every difference that is allowed, with its reason.
"""

import pytest

from conformance.pipe import Pipe
from scripting.scripts import BLOCKS, EDGES, SAME, SETUP
from support.inprocess import World, to_words
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

ARGUMENTS = ["2", "k1", "k2", "a1", b"\x00\xff", "3"]

# Release -> script -> why the reply of a Redis before it differs
BEFORE: dict[tuple[int, ...], dict[str, str]] = {
    (7, 2): {
        "return {double=1e300}": "7.2 writes doubles with the fewest digits",
        "return {{double=1e-7},{double=1e-5},{double=1e17},{double=0.1+0.2},{double=-1.5e22}}": "the same",
        "redis.call('set','k',3.3) return redis.call('get','k')": "7.2 writes numbers with the fewest digits",
    },
    (7, 4): {
        **dict.fromkeys(
            (
                "return redis.log(9,'x')",
                "redis.log(9,'x')",
                "redis.log(-1,'x')",
                "redis.log(0/0,'x')",
                "redis.log(1/0,'x')",
            ),
            "before 7.4 (redis#12636) the level of redis.log is called a debug level",
        ),
        "return redis.call('xread','block',10,'streams','stream','$')": "7.4 takes BLOCK (redis#12596), no wait",
        "return redis.call('xread','block',0,'streams','none','$')": "the same",
    },
}
# The same for those since
SINCE: dict[tuple[int, ...], dict[str, str]] = {
    (7, 4): {"return type(os)": "scripts have os.clock (redis#12971); ours see no clock, docs/scripting.md says so"}
}


def allowed(release: tuple[int, ...]) -> set[str]:
    """Return the scripts whose reply may differ on a server of this release."""
    before = {script for bound, scripts in BEFORE.items() if release < bound for script in scripts}
    return before | {script for bound, scripts in SINCE.items() if release >= bound for script in scripts}


@pytest.mark.parametrize("resp", [2, 3])
def test_scripts_answer_as_redis_does(each_redis: ServerProcess, resp: int) -> None:
    """Values, errors, error positions, sandbox and libraries of scripts are the same as in Redis."""
    known = allowed(each_redis.release())
    client = World().client(resp)
    pipe = Pipe(each_redis.port)
    differences = []
    try:
        pipe.ask([[b"HELLO", b"%d" % resp]])
        for line in SETUP:
            assert client.call(*line) == pipe.ask([to_words(line)])[0]
        for script in [*SAME, *EDGES, *BLOCKS]:
            words = to_words(["EVAL", script, *ARGUMENTS])
            ours, (theirs,) = client.call(*words), pipe.ask([words])
            if ours != theirs and script not in known:
                differences.append(f"{script!r}\n  redis: {theirs!r}\n  here:  {ours!r}")
    finally:
        pipe.close()
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences)
