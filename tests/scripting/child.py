"""Run scripts in a separate process, which a script may crash: it reads a JSON list of scripts per line.

For each line it writes a line with the replies as text and a mark if a script left something for later ones. The line
ends with the maximum processor time of a script in seconds. Argument: the time limit in milliseconds.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from millstream.node.scripting import scripts
from scripting.hostile import FINGERPRINT, LEAK
from support.inprocess import Client, World

# A quarter of the server's, so that what fills it takes no second
scripts.MEMORY = 64 * 1024 * 1024


def fingerprint(client: Client) -> object:
    """Return the globals of a script that has only the shared objects."""
    limit = client.call("CONFIG", "GET", "busy-reply-threshold")
    assert isinstance(limit, list)
    client.call("CONFIG", "SET", "busy-reply-threshold", "0")
    outcome = client.call("EVAL", FINGERPRINT, "0")
    assert isinstance(outcome, bytes), outcome
    client.call("CONFIG", "SET", *limit)
    return outcome


def main(limit: str) -> None:
    """Run scripts until the end of the input."""
    world = World({"busy-reply-threshold": limit})
    client = world.client()
    clean = fingerprint(client)
    for line in sys.stdin:
        replies, slowest, trace = [], 0.0, None
        for source in json.loads(line):
            words = [b"EVAL", source.encode("latin-1"), b"1", b"key", b"arg"]
            started = time.process_time()
            outcome = world.node.execute(client.session, words, world.clock.now())
            slowest = max(slowest, time.process_time() - started)
            assert outcome is not None
            replies.append(b"".join(outcome.buffers)[:500].decode("latin-1"))
            if fingerprint(client) != clean or client.call("EXISTS", LEAK):
                trace = source
                break
        sys.stdout.write(json.dumps({"replies": replies, "left_by": trace, "slowest": slowest}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
