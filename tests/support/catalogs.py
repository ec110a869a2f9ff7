"""An Iceberg catalog over HTTP for tests, backed by SQLite, which can refuse requests and lose replies."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

Fault = int | str
"""A status to reply with after the work; ``cut`` for no work and no reply; ``lost`` for work without a reply."""


@dataclass
class CatalogDoor:
    """The proxy in front of the catalog.

    Attributes:
        uri: URI of the catalog.
        rule: Function from method and path of a request to its fault, or None.
        commits: Number of commits it has made.
    """

    uri: str = ""
    rule: Callable[[str, str], Fault | None] = lambda _method, _path: None
    commits: list[str] = field(default_factory=list)


@contextlib.contextmanager
def catalog_server(folder: Path) -> Iterator[CatalogDoor]:
    """Yield a server of the catalog in a folder."""
    door = CatalogDoor()
    kept = SqlCatalog("kept", uri=f"sqlite:///{folder}/kept.db")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        do_HEAD = do_GET  # noqa: N815 - as above

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, body: dict[str, Any]) -> None:
            fault = door.rule(self.command, self.path)
            if fault == "cut":
                return
            status, answer = _done(kept, self.path, body, door)
            if fault == "lost":
                return
            if isinstance(fault, int):
                status, answer = fault, {"error": {"message": "out of order", "type": "Fault", "code": fault}}
            self.send_response(status)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(json.dumps(answer).encode())

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        door.uri = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()
    kept.close()


def _done(kept: SqlCatalog, path: str, body: dict[str, Any], door: CatalogDoor) -> tuple[int, Any]:
    parts = path.split("?", maxsplit=1)[0].strip("/").split("/")[1:]
    try:
        if parts == ["config"]:
            return 200, {"defaults": {}, "overrides": {}}
        if parts == ["namespaces"]:
            kept.create_namespace(body["namespace"][0])
            return 200, {"namespace": body["namespace"], "properties": {}}
        if len(parts) < 4 and not body:
            return 200, {"namespace": [parts[1]], "properties": {}}
        if len(parts) < 4:
            schema = Schema.model_validate(body["schema"])
            spec = PartitionSpec.model_validate(body["partition-spec"])
            made = kept.create_table(
                (parts[1], body["name"]), schema, body["location"], spec, properties=body["properties"]
            )
            return 200, _shown(made)
        table = kept.load_table((parts[1], parts[3]))
        if not body:
            return 200, _shown(table)
        request = CommitTableRequest.model_validate(body)
        kept.commit_table(table, request.requirements, request.updates)
        door.commits.append(parts[3])
        return 200, _shown(kept.load_table((parts[1], parts[3])))
    except (NoSuchTableError, NamespaceAlreadyExistsError, CommitFailedException) as reason:
        kind = type(reason).__name__
        status = 404 if isinstance(reason, NoSuchTableError) else 409
        return status, {"error": {"message": str(reason), "type": kind, "code": status}}


def _shown(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }
