"""A schema registry over HTTP with Confluent's API, which records the requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class SchemaRegistry:
    """The schemas of a registry.

    Attributes:
        url: The address that it listens on.
        schemas: The data of each schema, by id.
        subjects: The id of the latest version, by name.
        password: The required password, as ``user:password`` in Base64; empty for none.
        failures: The number of next requests with the reply 503.
        asked: The path of each request.
    """

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, int] = field(default_factory=dict)
    password: str = ""
    failures: int = 0
    asked: list[str] = field(default_factory=list)

    def add(self, ident: int, schema: Any, subject: str = "", **more: Any) -> None:
        """Register a schema, as the latest of a subject if one is named."""
        self.schemas[ident] = {"schema": json.dumps(schema), **more}
        if subject:
            self.subjects[subject] = ident

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Return status and body for a request."""
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50003, "message": "leader is away"}
        if self.password and authorization != f"Basic {self.password}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self.schemas:
            return 200, self.schemas[int(parts[2])]
        if parts[0] == "subjects" and parts[2:] == ["versions", "latest"] and parts[1] in self.subjects:
            ident = self.subjects[parts[1]]
            return 200, {"subject": parts[1], "version": 1, "id": ident, **self.schemas[ident]}
        return 404, {"error_code": 40401, "message": "not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Yield a registry that listens on this machine."""
    known = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = known.answer(self.path, self.headers.get("Authorization", ""))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="registry")
        thread.start()
        try:
            yield known
        finally:
            server.shutdown()
            thread.join()
