"""Millstream: event streams in Python.

The names here are the worker's, and ``connect`` for a client of a server or of the engine in this process. The other
parts are imported by their own names (``millstream.client``, ``millstream.spark``). Everything is loaded on first use,
so ``import millstream`` costs next to nothing.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from millstream.client.connect import connect as connect
    from millstream.client.connect import connect_async as connect_async
    from millstream.errors import Disconnected as Disconnected
    from millstream.worker.app import App as App
    from millstream.worker.batches import BatchError as BatchError
    from millstream.worker.depends import Depends as Depends
    from millstream.worker.loop import FatalError as FatalError
    from millstream.worker.message import EntryLostError as EntryLostError
    from millstream.worker.message import Message as Message
    from millstream.worker.message import Nack as Nack
    from millstream.worker.message import Reject as Reject
    from millstream.worker.middleware import Middleware as Middleware
    from millstream.worker.middleware import Timeout as Timeout
    from millstream.worker.once import once as once
    from millstream.worker.once import once_sync as once_sync
    from millstream.worker.payload import PayloadError as PayloadError
    from millstream.worker.pipelines import Sink as Sink
    from millstream.worker.pipelines import Source as Source
    from millstream.worker.policy import Retry as Retry
    from millstream.worker.settle import AlreadySettledError as AlreadySettledError
    from millstream.worker.subscription import StreamSub as StreamSub

_WHERE = {
    "Disconnected": "millstream.errors",
    "Depends": "millstream.worker.depends",
    "Timeout": "millstream.worker.middleware",
    "Middleware": "millstream.worker.middleware",
    "BatchError": "millstream.worker.batches",
    "AlreadySettledError": "millstream.worker.settle",
    "App": "millstream.worker.app",
    "EntryLostError": "millstream.worker.message",
    "FatalError": "millstream.worker.loop",
    "Message": "millstream.worker.message",
    "Nack": "millstream.worker.message",
    "PayloadError": "millstream.worker.payload",
    "Reject": "millstream.worker.message",
    "Retry": "millstream.worker.policy",
    "Sink": "millstream.worker.pipelines",
    "Source": "millstream.worker.pipelines",
    "StreamSub": "millstream.worker.subscription",
    "connect": "millstream.client.connect",
    "connect_async": "millstream.client.connect",
    "once": "millstream.worker.once",
    "once_sync": "millstream.worker.once",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - part of what is put off

    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*_WHERE, "__version__"]
