"""A place in an object store, by its URL.

The URL is ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``abfss://container@account.../prefix``. Credentials and
endpoint are those of the environment, as ``obstore``, ``deltalake`` and ``pyiceberg`` read it. Each process opens the
place by itself. A put is durable and complete when the store confirms it. Objects are requested by name, because a list
may lag: an object's absence from a list proves nothing.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import obstore
from obstore import store as stores
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import ObjectStore

from millstream.errors import ConfigError, UsageError
from millstream.printable import has_password, without_password
from millstream.spark.archiving.objects.lease import LEASE_SECONDS, leased
from millstream.spark.archiving.objects.refusals import NoConditionalPutError, ObjectStoreError, explained
from millstream.spark.archiving.objects.upload import Upload, opened
from millstream.spark.archiving.tables.storage import MANIFEST_NAME, ChangedMeanwhileError, NewObject

ONE_PUT = 64 << 20
"""Most bytes of a file that one request puts, of which a killed process leaves nothing; larger ones go in parts."""

_PART = 16 << 20
_MARK = "millstreamput"
"""Name of the object metadata that identifies a put: after a lost reply it shows which writer put the object."""

_PATIENT = (10, timedelta(minutes=3))
_FIRST = (2, timedelta(seconds=15), timedelta(seconds=5))
"""Number of retries of a request and their total time, during the work and for the first request.

The first request also has a limit for its reply. A machine without credentials of its own requests them at an address
that some networks drop silently.
"""


class ObjectStorage:
    """A place in an object store."""

    lease_seconds = LEASE_SECONDS
    patience = _PATIENT
    patience_at_first = _FIRST
    local: Path | None = None

    def __init__(self, url: str) -> None:
        if find_spec("obstore") is None:
            raise UsageError(
                "an archive in an object store needs obstore, which is not installed: pip install 'millstream[lake]'"
            )
        if has_password(url) or "?" in url or "#" in url or ("@" in url.split("/")[2] and not url.startswith("abfs")):
            raise ConfigError(
                f"cannot use {without_password(url)}: an archive's URL has a bucket and a prefix alone. Set keys and "
                "options of the store in the environment."
            )
        self._url = self.location = url.rstrip("/")
        self._opened: ObjectStore | None = None

    def iceberg_properties(self) -> Mapping[str, str]:
        """Return the endpoint and region, if set; credentials are those of the environment."""
        given = {
            "s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
            "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        }
        return {name: value for name, value in given.items() if value and self._url.startswith("s3:")}

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return the object's content."""
        there = self.versioned(path)
        if there is None:
            raise FileNotFoundError(f"{self._url}/{path}")
        return there[0]

    def open(self, path: str) -> BinaryIO:
        """Open the object for reading in any order."""
        return opened(self._store, self._url, path)

    def exists(self, path: str) -> bool:
        """Return True if the object exists, by a request for it."""
        try:
            self._head(path)
        except FileNotFoundError:
            return False
        return True

    def modified_ms(self, path: str) -> int:
        """Return the time of the object's put by the store's clock, in milliseconds since 1970."""
        return int(self._head(path)["last_modified"].timestamp() * 1000)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths below a folder; an object that the list lacks may exist all the same."""
        with explained(self._url, "list what is there"):
            for found in obstore.list(self._store, prefix or None):
                yield from (meta["path"] for meta in found)

    def top(self) -> set[str]:
        """Return the names directly below the place."""
        with explained(self._url, "list what is there"):
            found = obstore.list_with_delimiter(self._store)
        return {path.rstrip("/") for path in [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]}

    def _head(self, path: str) -> Any:
        with explained(self._url, f"look at {path}"):
            return obstore.head(self._store, path)

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str) -> NewObject:
        """Return a file to write; it is put when it is kept."""
        return Upload(lambda file, size: self._put_file(path, file, size))

    def _put_file(self, path: str, file: BinaryIO, size: int) -> None:
        """Put a file under an unused name, and check the size of the object."""
        if size <= ONE_PUT:
            try:
                self.put_version(path, file.read(), None)
            except ChangedMeanwhileError:
                raise FileExistsError(f"{self._url}/{path}") from None
        else:
            with explained(self._url, f"put {path}"):
                obstore.put(self._store, path, file, use_multipart=True, chunk_size=_PART, max_concurrency=4)
        there = self._head(path)["size"]
        if there != size:
            raise ObjectStoreError(
                f"{self._url}/{path}: {size} bytes were put, but the object has {there}: run this again"
            )

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put bytes under an unused name; raise ChangedMeanwhileError if it is used."""
        self.put_version(path, data, None)

    def replace_if_unchanged(
        self, path: str, old: bytes | None, data: bytes, before: Callable[[], None] = lambda: None
    ) -> None:
        """Replace the bytes ``old``; raise ChangedMeanwhileError if the object has others."""
        there = self.versioned(path)
        if (None if there is None else there[0]) != old:
            raise self._changed(path)
        before()
        self.put_version(path, data, None if there is None else there[1])

    def versioned(self, path: str) -> tuple[bytes, Any] | None:
        """Return the content and its version; None if the object does not exist."""
        try:
            with explained(self._url, f"get {path}"):
                found = obstore.get(self._store, path)
                return bytes(found.bytes()), _version(found.meta)
        except FileNotFoundError:
            return None

    def put_version(self, path: str, data: bytes, version: Any | None) -> Any:
        """Put bytes in place of that version, or of no object; return the new version."""
        mark = uuid.uuid4().hex
        try:
            with explained(self._url, f"put {path}"):
                mode: Any = "create" if version is None else version
                made = obstore.put(self._store, path, data, mode=mode, attributes={_MARK: mark}, use_multipart=False)
            return _version(made)
        except FileNotFoundError:  # the version to replace does not exist
            raise self._changed(path) from None
        except (AlreadyExistsError, PreconditionError):
            ours = self._marked(path, mark)
            if ours is None:
                raise self._changed(path) from None
            return ours

    def _marked(self, path: str, mark: str) -> Any | None:
        """Return the present version if this put made it: its reply was lost and the put was sent again."""
        try:
            with explained(self._url, f"get {path}"):
                found = obstore.get(self._store, path)
        except FileNotFoundError:
            return None
        return _version(found.meta) if found.attributes.get(_MARK) == mark else None

    def _changed(self, path: str) -> ChangedMeanwhileError:
        return ChangedMeanwhileError(f"{self._url}/{path} was written by another program meanwhile")

    def delete(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""
        try:
            with explained(self._url, f"delete {path}"):
                obstore.delete(self._store, path)
        except FileNotFoundError:
            return

    def sync(self, *paths: str) -> None:
        """Do nothing: a confirmed put is durable."""

    def sync_names(self, *paths: str) -> None:
        """Check that a kept file exists, whichever job put it."""
        for path in paths:
            if not self.exists(path):
                raise ObjectStoreError(f"{self._url}/{path} was put and is missing; nothing is lost: run this again")

    # --- the lock ----------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, path: str) -> Iterator[str | None]:
        """Hold the lock of that name in the block; yield the owner if it is another job, else None."""
        with leased(partial(self.versioned, path), partial(self.put_version, path), self.lease_seconds) as holder:
            if holder is None:
                self._try_conditions(path)
            yield holder

    def _try_conditions(self, path: str) -> None:
        """Check that the store refuses a wrong condition on an existing object: some ignore conditions silently."""
        for wrong in (None, {"e_tag": '"0"', "version": "1"}):
            there = self.versioned(path)
            try:
                self.put_version(path, b"" if there is None else there[0], wrong)
            except ChangedMeanwhileError:
                continue
            raise NoConditionalPutError(
                f"{self._url}: the store puts objects whatever the condition, and an archive's lock and manifest need "
                "one: take a store that keeps to it, or a directory"
            )

    # --- the store ---------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._meet()
            self._opened = self._made(*self.patience)
        return self._opened

    def _meet(self) -> None:
        """Check that the store answers and accepts the credentials, with fewer retries than later requests have."""
        store = self._made(*self.patience_at_first)
        try:
            with explained(self._url, f"get {MANIFEST_NAME}"):
                obstore.get(store, MANIFEST_NAME)
        except (FileNotFoundError, ObjectStoreError):
            return  # the store is reachable; a later reply shows further errors

    def _made(self, retries: int, longest: timedelta, answer: timedelta | None = None) -> ObjectStore:
        parts = urlsplit(self._url)
        more: dict[str, Any] = {
            "prefix": parts.path.strip("/") or None,
            "retry_config": {"max_retries": retries, "retry_timeout": longest},
        }
        if answer is not None:
            # Not client_options: with it, obstore ignores those from the environment
            more["config"] = {"timeout": f"{answer.total_seconds()} s"}
        with explained(self._url, "open it"):
            if parts.scheme == "s3":
                return stores.S3Store(parts.netloc, **more)
            if parts.scheme == "gs":
                return stores.GCSStore(parts.netloc, **more)
            container, _, host = parts.netloc.partition("@")
            return stores.AzureStore(container, account_name=host.partition(".")[0], **more)


def _version(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version in the form that a conditional put needs."""
    return {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
