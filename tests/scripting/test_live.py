"""Scripts on our node and on a living redis-server: the same replies, in RESP2 and RESP3, one after another.

``BEFORE`` and ``SINCE`` list every difference that is allowed, with its reason.
"""

import pytest

from conformance.pipe import Pipe
from scripting.scripts import BLOCKS, EDGES, SAME, SETUP
from support.inprocess import World, to_words
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

ARGUMENTS = ["2", "k1", "k2", "a1", b"\x00\xff", "3"]

# Script -> why the reply of a Redis before 7.2 differs
BEFORE = {
    **dict.fromkeys(
        (
            "return redis.log(9,'x')",
            "redis.log(9,'x')",
            "redis.log(-1,'x')",
            "redis.log(0/0,'x')",
            "redis.log(1/0,'x')",
        ),
        "7.0 calls the level of redis.log a debug level",
    ),
    "return {double=1e300}": "7.2 writes doubles with the fewest digits",
    "redis.call('set','k',3.3) return redis.call('get','k')": "7.2 writes numbers with the fewest digits",
    "return redis.call('xread','block',10,'streams','stream','$')": "7.2 takes BLOCK in scripts and does not wait",
    "return redis.call('xread','block',0,'streams','none','$')": "the same",
}
# The same for those since
SINCE = {"return type(os)": "scripts have os.clock since 7.4; ours see no clock, docs/scripting.md says so"}


@pytest.mark.parametrize("resp", [2, 3])
def test_scripts_answer_as_redis_does(each_redis: ServerProcess, resp: int) -> None:
    """Values, errors, places of errors, the sandbox and the libraries, script by script on the same data."""
    known = BEFORE if each_redis.release() < (7, 2) else SINCE
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
