"""One tree of errors: whose fault it is, and what state you are in afterwards.

::

    MillstreamError
    ├── CommandError         a command was refused; nothing changed; its text is the reply (the client's fault)
    │   ├── PatternTooCostlyError   its patterns would keep everybody else waiting (glob)
    │   └── SyntaxRefusedError      Redis's plainest error (commands)
    ├── ProtocolError        the peer sent bytes that are not RESP; the connection cannot go on (the peer's fault)
    │   └── QueryBufferError        or more than it may have waiting; closed without a reply (protocol)
    ├── UsageError           this library was called wrongly (the caller's fault; ``ConfigError`` for settings)
    │   ├── ConfigError
    │   │   └── NoArchiveError      the directory holds no archive (spark)
    │   ├── AlreadySettledError     an entry was given a second outcome (worker)
    │   ├── DataLossError           entries that a query had to read are gone (spark)
    │   ├── ListenError             the server cannot listen there (server)
    │   ├── PortError               the console cannot listen there (console)
    │   └── TlsError                the TLS files cannot be used (server)
    ├── Disconnected         no answer came; unless ``sent`` is False, the command may have run (nobody's fault)
    ├── StorageError         the data directory or its disk (nobody may write until it is mended)
    │   ├── LogCorruptError  valid records stand behind an invalid one: starting would lose them silently
    │   ├── LogLockedError   another process owns the data directory
    │   ├── DiskError        a write or an fsync failed; the state on disk is unknown past the last good record
    │   │   └── DiskFullError    no space; nothing of it is on disk, and it may be tried again when there is space
    │   ├── FormatError             no log file, or of a format this version does not know (persistence)
    │   ├── NewerRecordError        only a newer version reads this record (maintenance)
    │   ├── GivenUpError            rewriting the log ended without a snapshot; the log is as it was (node)
    │   ├── ArchiveLockedError      another job writes to this archive (spark)
    │   └── ManifestError           an archive's list of files is not one, or a change would break it (spark)
    │
    │   What a user's handler raises, or finds raised; the worker settles the entry by it:
    ├── Nack                 this delivery did not work out; give the entry to anybody
    ├── Reject               the entry is no good; to the dead-letter stream at once
    ├── BatchError           these entries of a batch have failed, all others are done
    ├── PayloadError         the entry does not fit the handler's annotations
    ├── HandlerTimeoutError  the handler took longer than it may
    ├── EntryLostError       the entry is another consumer's by now, or gone; its outcome is not ours to decide
    │
    │   What ends an operation; its text says what happened and what to do:
    ├── AccessDenied         the server refused user, password or right; trying again does not help (client)
    ├── Withheld             a condition did not hold any more, so the commands were not sent (client)
    ├── LettersRefusedError  the server takes no dead letters; what has none is pending as it was (client)
    ├── DeadLetterStreamError       the dead-letter stream cannot be used as asked (worker)
    ├── FatalError           the subscriber cannot go on: wrong type of key, no permission (worker)
    ├── RegistryError        the registry of workers cannot be read or written (worker)
    ├── NotThereError        nothing has that name there (worker)
    ├── NotAddedError        entries were not added, or nobody knows whether they were (cli)
    ├── NotReadableError     no such stream or group, or the server does not tell (console)
    │   └── NotAllowedError         the user has no right to look (console)
    ├── ReapError            the script that removes dead consumers did not run (worker)
    ├── HealthError          the health endpoint cannot listen (worker)
    ├── MetricsError         prometheus-client is not installed (worker)
    ├── QueriesError         the server does not let us read what is known of queries (spark)
    ├── ArchiveError         Spark ended the archive's job (spark)
    ├── ReplayError          the target did not take the entries; what was written stays (spark)
    ├── MigrationError       a copy to or from another server cannot go on (migrate)
    │   ├── LinkError               one end cannot be reached, or does not let us in
    │   ├── RefusedError            a server refused a command
    │   ├── ChangedError            somebody writes to the source
    │   └── UnequalError            the copy is not like the source
    ├── ChangeRefusedError   a change is not made: facts, server or rights do not allow it (console)
    │   └── TargetMissingError      what it is to change is not there (console)
    ├── UnreachableError     the server cannot be reached, or refuses to talk to us (maintenance)
    ├── NoPageError          an address that no page of the console has (console)
    ├── AclFileError         the ACL file is wrong; nothing of it was taken (commands)
    ├── RuleError            a rule of ACL SETUSER is wrong (commands)
    │   └── UnmatchedError          a parenthesis that nobody closes
    └── DemoError            the demo cannot go on (demo)

Only ``CommandError`` and ``ProtocolError`` may reach a network client; the rest end in a log line or an exit code.

Beside the tree stand what is no fault (``Blocked``, a handler that waits), what other libraries expect to catch
(``Redirected`` is a ConnectionError, ``TooDeepError`` a ValueError, ``StillBusyError`` an AssertionError,
``AckMessage`` FastStream's), and what never leaves its module (``MalformedError``, ``GroupMissing``,
``DeliveryLimitError``). A test holds this tree to the source.
"""

from typing import ClassVar


class MillstreamError(Exception):
    """Root of every error this package raises on purpose.

    Attributes:
        exit_code: what a subcommand ends with where this is what went wrong, alike in all of them.
    """

    exit_code: ClassVar[int] = 1


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

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A setting, option or URL is not valid; the text names it and what is accepted."""


class Disconnected(MillstreamError):  # noqa: N818 - a state of the connection, not a fault of the caller
    """The connection broke, or could not be made, before the reply came.

    Attributes:
        sent: False when nothing was written, so that the command surely did not run and may be sent again; else
            whether it ran is unknown.
    """

    exit_code: ClassVar[int] = 3

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
