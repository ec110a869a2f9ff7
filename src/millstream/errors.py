"""One tree of errors: whose fault it is, and what state you are in afterwards.

::

    MillstreamError
    ├── CommandError         a command was refused; nothing changed; its text is the reply (the client's fault)
    ├── ProtocolError        the peer sent bytes that are not RESP; the connection cannot go on (the peer's fault)
    ├── UsageError           this library was called wrongly (the caller's fault; ``ConfigError`` for settings)
    │   └── ConfigError
    ├── Disconnected         no answer came; unless ``sent`` is False, the command may have run (nobody's fault)
    └── StorageError         the data directory or its disk (nobody may write until it is mended)
        ├── LogCorruptError  valid records stand behind an invalid one: starting would lose them silently
        ├── LogLockedError   another process owns the data directory
        └── DiskError        a write or an fsync failed; the state on disk is unknown past the last good record
            └── DiskFullError    no space; nothing of it is on disk, and it may be tried again when there is space

Only ``CommandError`` and ``ProtocolError`` may reach a network client; the rest end in a log line or an exit code.
"""


class MillstreamError(Exception):
    """Root of every error this package raises on purpose."""


class CommandError(MillstreamError):
    """A command was refused before it changed anything.

    ``args[0]`` is the whole error line as Redis words it, code first: ``"ERR syntax error"``.
    """

    @property
    def line(self) -> str:
        """The reply line without its leading ``-``."""
        return str(self.args[0])


class ProtocolError(MillstreamError):
    """The peer broke RESP, or one of its limits; ``args[0]`` is Redis's wording of it."""


class UsageError(MillstreamError):
    """The caller used this library in a way it cannot mean; the text says what to do instead."""


class ConfigError(UsageError):
    """A setting, option or URL is not valid; the text names it and what is accepted."""


class Disconnected(MillstreamError):  # noqa: N818 - a state of the connection, not a fault of the caller
    """The connection broke, or could not be made, before the reply came.

    Attributes:
        sent: False when nothing was written, so that the command surely did not run and may be sent again; else
            whether it ran is unknown.
    """

    def __init__(self, message: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StorageError(MillstreamError):
    """The data directory cannot be used as asked; see the subclasses for what to do."""


class LogCorruptError(StorageError):
    """A record is damaged and valid records follow it.

    Compare a torn tail, which recovery cuts and reports: here cutting would drop acknowledged records.
    """

    def __init__(self, message: str, *, path: str, offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class LogLockedError(StorageError):
    """Another living process holds the data directory; only one may.

    ``pid`` is that process, ``address`` where it serves (``"unix:/run/x.sock"``); each None where not known.
    """

    def __init__(self, message: str, *, pid: int | None = None, address: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.address = address


class DiskError(StorageError):
    """A write, fsync or rename failed. What was not yet reported durable may or may not be on disk."""


class DiskFullError(DiskError):
    """The disk or its quota is full. Unlike its parent this mends: what was refused is kept, to be written again."""
