"""Millstream: event streams in Python.

This module exports the worker's names, ``connect`` and ``open_store``. ``connect`` makes a client of a server or of the
engine in this process; ``open_store`` opens that engine without a client. Import the other parts by their full names
(``millstream.client``, ``millstream.spark``). Every part is loaded on first use, so ``import millstream`` costs next to
nothing.
"""

import importlib
from typing import TYPE_CHECKING

from millstream._version import __version__ as __version__

if TYPE_CHECKING:
    from millstream.client.connect import connect as connect
    from millstream.client.connect import connect_async as connect_async
    from millstream.embedded.direct import open_store as open_store
    from millstream.errors import Disconnected as Disconnected
    from millstream.worker.app import App as App
    from millstream.worker.handlers.dependencies import Depends as Depends
    from millstream.worker.handlers.idempotency import once as once
    from millstream.worker.handlers.idempotency import once_sync as once_sync
    from millstream.worker.handlers.message import EntryLostError as EntryLostError
    from millstream.worker.handlers.message import Message as Message
    from millstream.worker.handlers.middleware import Middleware as Middleware
    from millstream.worker.handlers.middleware import Timeout as Timeout
    from millstream.worker.handlers.subscription import StreamSub as StreamSub
    from millstream.worker.jobs.job import Job as Job
    from millstream.worker.jobs.job import JobState as JobState
    from millstream.worker.later.declaring import Fire as Fire
    from millstream.worker.model.answers import JobCancelledError as JobCancelledError
    from millstream.worker.model.answers import JobDeadError as JobDeadError
    from millstream.worker.model.answers import Nack as Nack
    from millstream.worker.model.answers import PayloadError as PayloadError
    from millstream.worker.model.answers import Reject as Reject
    from millstream.worker.model.errors import FatalError as FatalError
    from millstream.worker.model.lifecycle import AlreadySettledError as AlreadySettledError
    from millstream.worker.model.limit import Limit as Limit
    from millstream.worker.model.retry import Retry as Retry
    from millstream.worker.pipelines import Sink as Sink
    from millstream.worker.pipelines import Source as Source
    from millstream.worker.router import Router as Router
    from millstream.worker.subscriber.batching import BatchError as BatchError

_NAMES = {
    "errors": "Disconnected",
    "worker.handlers.dependencies": "Depends",
    "worker.handlers.middleware": "Timeout Middleware",
    "worker.subscriber.batching": "BatchError",
    "worker.model.lifecycle": "AlreadySettledError",
    "worker.app": "App",
    "worker.handlers.message": "EntryLostError Message",
    "worker.model.errors": "FatalError",
    "worker.model.limit": "Limit",
    "worker.model.answers": "Nack PayloadError Reject JobCancelledError JobDeadError",
    "worker.later.declaring": "Fire",
    "worker.jobs.job": "Job JobState",
    "worker.model.retry": "Retry",
    "worker.router": "Router",
    "worker.pipelines": "Sink Source",
    "worker.handlers.subscription": "StreamSub",
    "client.connect": "connect connect_async",
    "embedded.direct": "open_store",
    "worker.handlers.idempotency": "once once_sync",
}
_WHERE = {name: f"millstream.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*_WHERE, "__version__"]
