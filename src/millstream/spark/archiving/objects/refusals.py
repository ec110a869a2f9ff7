"""Explanations of an object store's errors, each with a remedy.

They quote no header and no query of an address, which may hold secrets.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from obstore import exceptions as obstores

from millstream.errors import MillstreamError, NotFoundError, NotLetInError, NotReachedError, StorageError

_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_HOST = re.compile(r"https?://[^/\s?]+")

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_NO_CREDENTIALS = ("169.254.", "/latest/api/token", "metadata.google", "MissingCredentials", "metadata endpoint")
_UNKNOWN_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefresh")
_FULL = ("QuotaExceeded", "StorageFull", "InsufficientStorage", "InsufficientCapacity", "NoSpace", "QuotaReached")
_SLOW = ("SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "rateLimitExceeded")
_UNREACHED = ("kind: Connect", "kind: Timeout", "kind: Request", "kind: Interrupted", "error sending request")


@dataclass(frozen=True)
class _Variables:
    """The environment variables that a store uses."""

    credentials: str  # Variables for the credentials, in words
    http: str  # Variable that allows an address without TLS
    address: str  # Setting for the address, in words


_OF = {
    "s3": _Variables(
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "AWS_ALLOW_HTTP",
        " (AWS_ENDPOINT_URL for a store other than Amazon's)",
    ),
    "gs": _Variables("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_ALLOW_HTTP", ""),
    "abfss": _Variables(
        "AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CLIENT_ID with _CLIENT_SECRET and _TENANT_ID",
        "AZURE_ALLOW_HTTP",
        " (AZURE_STORAGE_ENDPOINT for a store other than Azure's)",
    ),
}
"""Environment variables by the scheme of an archive's URL."""


class ObjectStoreError(StorageError):
    """An object store did not carry out a request.

    The job trimmed no entry outside of the files that its manifest names.

    What to do: correct the fault that the message names, and run the job again. It continues after the archived
    entries.
    """


class NoConditionalPutError(ObjectStoreError):
    """The object store cannot put an object on condition that it is unchanged. The lock and the manifest need that.

    What to do: use a directory, or a store that can: S3, Google Cloud Storage, Azure, or a current server compatible
    with S3.
    """


@contextmanager
def explained(place: str, doing: str) -> Iterator[None]:
    """Turn errors of ``obstore`` into one sentence; ``FileNotFoundError`` and failed conditions stay as they are."""
    try:
        yield
    except FileNotFoundError as reason:
        if any(word in str(reason) for word in _NO_BUCKET):
            raise _no_bucket(place) from None
        raise FileNotFoundError(f"{place}: {doing}: it is not there") from None
    except (obstores.AlreadyExistsError, obstores.PreconditionError):
        raise
    except obstores.BaseError as reason:
        raise explanation(place, doing, reason) from None


def explanation(place: str, doing: str, reason: Exception) -> MillstreamError:
    """Return the error that explains a store's reply."""
    text, kind = str(reason), type(reason).__name__
    variables = _OF[place.partition("://")[0]]
    code, status, host = (_first(shape, text) for shape in (_CODE, _STATUS, _HOST))
    said = " ".join(filter(None, (status, code))) or kind

    def has(words: tuple[str, ...]) -> bool:
        return code in words or any(word in text for word in words)

    if has(_NO_BUCKET):
        return _no_bucket(place)
    if has(_NO_CREDENTIALS):  # the last source of credentials is the cloud machine's own service
        return NotLetInError(
            f"{place}: no credentials were found: set those of the store in the environment ({variables.credentials}), "
            "on executors too"
        )
    if has(_UNKNOWN_CREDENTIALS) or kind == "UnauthenticatedError":
        return NotLetInError(f"{place}: the store refused the credentials ({said}): correct those in the environment")
    if (kind == "PermissionDeniedError" or status == "403") and not has(_FULL):
        return NotLetInError(
            f"{place}: the credentials do not allow to {doing} ({said}): allow reading, putting, listing and deleting "
            "there"
        )
    if kind == "NotSupportedError" or status == "501":
        return NoConditionalPutError(
            f"{place}: the store cannot put an object on condition ({said}), which an archive's lock and manifest "
            "need: take a store that can, or a directory"
        )
    if has(_FULL) or status == "507":
        return ObjectStoreError(f"{place}: the store is full ({said}): make room, and run this again; nothing is lost")
    if has(_SLOW) or status in ("429", "503"):
        return ObjectStoreError(
            f"{place}: the store receives too many requests ({said}) and did not {doing} before the "
            "retries ended: run this again later, or with larger batches; nothing is lost"
        )
    if status is None and "BadScheme" in text:  # the HTTP client refused http://, because TLS is required
        return NotReachedError(
            f"{place}: the object store{f' at {host}' if host else ''} is named by an address without TLS, which is "
            f"not allowed: set {variables.http}=true in the environment, or name one that begins with https://"
        )
    if status is None and has(_UNREACHED):
        return NotReachedError(
            f"{place}: the object store{f' at {host}' if host else ''} does not answer: start it, or correct its "
            f"address{variables.address}"
        )
    line = text.partition("\n")[0] if status is None and host is None else ""
    return ObjectStoreError(f"{place}: the store did not {doing} ({line or said}): run this again; nothing is lost")


def _no_bucket(place: str) -> NotFoundError:
    bucket = place.partition("://")[2].partition("/")[0]
    return NotFoundError(f"{place}: there is no bucket {bucket!r}: make it, or correct the URL")


def _first(shape: re.Pattern[str], text: str) -> str | None:
    found = shape.search(text)
    return None if found is None else found[found.re.groups]
