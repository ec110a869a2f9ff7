"""A server with replicas, monitored by Sentinels that replace it when it dies."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.needs import program
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.waiting import eventually


class Watched:
    """A primary, its replicas and Sentinels.

    Args:
        folder: The folder for all data.
        make: A function from a folder to a server that is not started yet.
        replicas: The number of replicas.
        sentinels: The number of Sentinels; more than half of them must agree.
        silence: Milliseconds without a reply after which a server counts as gone.
        way: A function from the primary's port to the one at which Sentinels and replicas reach it.

    Attributes:
        servers: The first primary, then its replicas.
        url: URL by which clients find the current primary.
    """

    def __init__(
        self,
        folder: Path,
        make: Callable[[Path], ServerProcess] = redis_server,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        silence: int = 500,
        way: Callable[[int], int] = lambda port: port,
    ) -> None:
        self.master = make(folder / "master")
        self._way = way(self.master.port)
        self.servers = [self.master, *(make(folder / f"replica-{number}") for number in range(replicas))]
        self.replica = self.servers[1]
        self._quorum, self._silence = sentinels // 2 + 1, silence
        self.sentinels = [self._sentinel(folder / f"sentinel-{number}") for number in range(sentinels)]
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/orders/0"

    def _sentinel(self, folder: Path) -> ServerProcess:
        folder.mkdir()
        port = free_port()
        (folder / "sentinel.conf").write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor orders 127.0.0.1 {self._way} {self._quorum}\n"
            f"sentinel down-after-milliseconds orders {self._silence}\n"
            "sentinel failover-timeout orders 3000\n"
        )
        return ServerProcess(
            [program("redis-server"), str(folder / "sentinel.conf"), "--sentinel"], port, folder / "sentinel.out"
        )

    def ready(self) -> bool:
        """Wait until the replicas are in sync and each Sentinel lists them and the other Sentinels."""
        for one in self.servers[1:]:
            with one.client(decode_responses=True) as client:
                link: Any = client.info("replication")
            if link["master_link_status"] != "up":
                return False
        return all(self._knows_all(one) for one in self.sentinels)

    def _knows_all(self, sentinel: ServerProcess) -> bool:
        with sentinel.client(decode_responses=True) as client:
            state: Any = client.execute_command("SENTINEL", "MASTER", "orders")
        facts = state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))
        known = int(facts["num-slaves"]), int(facts["num-other-sentinels"])
        return known[0] >= len(self.servers) - 1 and known[1] >= len(self.sentinels) - 1

    def chosen(self) -> ServerProcess | None:
        """Return the server that the first Sentinel names as primary, or None for another one."""
        with self.sentinels[0].client(decode_responses=True) as client:
            place: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders")
        port = int(place[1]) if place else 0
        return next((one for one in self.servers if port == (self._way if one is self.master else one.port)), None)

    def __enter__(self) -> "Watched":
        with contextlib.ExitStack() as stack:
            for server in (*self.servers, *self.sentinels):
                stack.enter_context(server)
                if server in self.servers[1:]:
                    with server.client() as client:
                        client.execute_command("REPLICAOF", "127.0.0.1", self._way)
            eventually(self.ready, what="replicas and Sentinels know each other")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
