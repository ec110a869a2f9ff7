"""A Redis with a replica, watched by three Sentinels that replace it when it dies."""

import contextlib
from pathlib import Path
from typing import Any

from support.needs import program
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.waiting import eventually


class Watched:
    """A master, its replica and three Sentinels."""

    def __init__(self, folder: Path) -> None:
        self.master = redis_server(folder / "master")
        self.replica = redis_server(folder / "replica", "--replicaof", "127.0.0.1", str(self.master.port))
        self.sentinels = [self._sentinel(folder / f"sentinel-{number}") for number in range(3)]
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/orders/0"

    def _sentinel(self, folder: Path) -> ServerProcess:
        folder.mkdir()
        port = free_port()
        (folder / "sentinel.conf").write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor orders 127.0.0.1 {self.master.port} 2\n"
            "sentinel down-after-milliseconds orders 500\n"
            "sentinel failover-timeout orders 3000\n"
        )
        return ServerProcess(
            [program("redis-server"), str(folder / "sentinel.conf"), "--sentinel"], port, folder / "sentinel.out"
        )

    def ready(self) -> bool:
        """The replica is in step, and each Sentinel knows it and the other two."""
        with self.replica.client(decode_responses=True) as client:
            link: Any = client.info("replication")
        if link["master_link_status"] != "up":
            return False
        for one in self.sentinels:
            with one.client(decode_responses=True) as client:
                state: Any = client.execute_command("SENTINEL", "MASTER", "orders")
            facts = state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))
            if int(facts["num-slaves"]) < 1 or int(facts["num-other-sentinels"]) < 2:
                return False
        return True

    def __enter__(self) -> "Watched":
        with contextlib.ExitStack() as stack:
            for server in (self.master, self.replica, *self.sentinels):
                stack.enter_context(server)
            eventually(self.ready, what="replica and Sentinels know each other")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
