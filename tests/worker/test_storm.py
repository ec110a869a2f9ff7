"""Workers and the server killed while work is going on: every entry has its effect, each repetition is explained."""

import os
import random
import signal
from collections import Counter
from typing import Any

import redis

from support.groups import consumers
from support.servers import ServerProcess
from support.waiting import eventually

APP = """
import os
from millstream import App, Message, Retry, StreamSub

app = App()

@app.subscriber(
    StreamSub("jobs", group="g", min_idle_time=500),
    retry=Retry(max_deliveries=8, base=0.05, backoff="constant"),
    concurrency=4,
)
async def work(x: int, msg: Message) -> None:
    with open("effects.txt", "a") as file:
        file.write(f"{x} {msg.id} {msg.delivery_count}\\n")
    if x % 100 == 7:
        raise ValueError("always fails")
    if x % 50 == 3 and msg.delivery_count == 1:
        raise ValueError("fails once")
"""

COUNT = 1_500


def test_nothing_is_lost_when_workers_and_server_are_killed(own_server: ServerProcess, tasks: Any) -> None:
    """Five times a worker dies by SIGKILL, twice the server: every entry ends handled or dead, none is lost."""
    chance = random.Random(1)
    with own_server.client(decode_responses=True) as client:
        client.xgroup_create("jobs", "g", "0", mkstream=True)
    running = tasks.run(tasks.app(APP), own_server.url, "--workers", "3")
    written = 0
    for event in range(7):
        with own_server.client(decode_responses=True) as client:
            for _ in range(COUNT // 7 + 1):
                client.xadd("jobs", {"x": written})
                written += 1
            eventually(lambda half=written // 2: done_files(tasks) > half, what="half of it is done")
            if event in (2, 4):
                own_server.kill()
                own_server.start()
            else:
                # where the machine is quick, the workers killed before may still be starting again
                names = eventually(lambda client=client: living(client), what="a worker is alive")
                os.kill(pid_of(chance.choice(names)), signal.SIGKILL)
    with own_server.client(decode_responses=True) as client:
        eventually(lambda: settled(client), 60, what="nothing is pending")
        running.terminate()
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 0, out
        dead: Any = client.xrange("jobs:dead")
    runs = Counter(int(line.split()[0]) for line in lines(tasks))
    assert set(runs) == set(range(written))
    assert Counter(int(fields["x"]) for _, fields in dead) == {x: 1 for x in range(written) if x % 100 == 7}
    # an entry that does not fail by itself runs again only because a kill took its outcome away: what seven kills can
    # take is what three workers hold
    again = sum(count - 1 for x, count in runs.items() if x % 100 != 7 and x % 50 != 3)
    assert again <= 7 * 3 * (128 + 4)


def lines(tasks: Any) -> list[str]:
    file = tasks.folder / "effects.txt"
    return file.read_text().splitlines() if file.exists() else []


def done_files(tasks: Any) -> int:
    return len({line.split()[0] for line in lines(tasks)})


def pid_of(name: str) -> int:
    return int(name.split("-")[-2])


def living(client: redis.Redis) -> list[str]:
    return sorted(name for name in consumers(client, "jobs", "g") if alive(name))


def alive(name: str) -> bool:
    try:
        os.kill(pid_of(name), 0)
    except ProcessLookupError:
        return False
    return True


def settled(client: redis.Redis) -> bool:
    try:
        groups: Any = client.xinfo_groups("jobs")
    except redis.RedisError:
        return False
    return bool(groups[0]["pending"] == 0 and groups[0]["lag"] == 0)
