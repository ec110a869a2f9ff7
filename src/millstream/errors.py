"""One tree of errors: whose fault it is, and what state you are in afterwards.

::

    MillstreamError
    ├── CommandError         a command was refused; nothing changed; its text is the reply (the client's fault)
    │   ├── PatternTooCostlyError   its patterns would keep other clients waiting (glob)
    │   └── SyntaxRefusedError      Redis's plainest error (commands)
    ├── ProtocolError        the peer sent bytes that are not RESP; the connection cannot go on (the peer's fault)
    │   └── QueryBufferError        it sent more than the limit of unprocessed bytes; closed without a reply (protocol)
    ├── UsageError           this library was called wrongly (the caller's fault; ``ConfigError`` for settings)
    │   ├── ConfigError
    │   │   ├── NotReachedError     the server that a setting names does not answer
    │   │   ├── NotLetInError       it refused the setting's user or password
    │   │   └── NotFoundError       nothing has the name that it gives
    │   │       ├── NoArchiveError      the directory holds no archive (spark)
    │   │       └── NoContextError      no context of the user's has that name (cli)
    │   ├── AlreadySettledError     an entry was given a second outcome (worker)
    │   ├── DataLossError           entries that a query had to read are gone (spark)
    │   ├── ListenError             the server cannot listen there (server)
    │   ├── ReplacedError           a stream is not the one that was archived (spark)
    │   ├── PortError               the console cannot listen there (console)
    │   └── TlsError                the TLS files cannot be used (server)
    ├── LinkLostError        the link to the primary is over; it is tried again (server)
    ├── FailoverRefusedError  the server does not hand over its role (cli)
    ├── NotHeldError         the primary has sent a thing that does not exist here; it is not followed any more (node)
    ├── DivergedError        a command of the primary failed here; a copy is asked for (node)
    ├── LoadingStoppedError  a stop was requested before the server had read its log (server)
    ├── Disconnected         no answer came; unless ``sent`` is False, the command may have run (not a fault)
    ├── StorageError         the data directory or its disk (writes are refused until it is mended)
    │   ├── LogCorruptError  valid records follow an invalid one: starting would lose them silently
    │   ├── LogLockedError   another process owns the data directory
    │   ├── DiskError        a write or an fsync failed; the state on disk is unknown past the last good record
    │   │   └── DiskFullError    no space; nothing of it is on disk, and it may be tried again when there is space
    │   ├── FormatError             not a log file, or one of an unknown format (persistence)
    │   ├── NewerRecordError        only a newer version reads this record (maintenance)
    │   ├── GivenUpError            rewriting the log ended without a snapshot; the log is as it was (node)
    │   ├── ArchiveLockedError      another job writes to this archive (spark)
    │   ├── ChangedMeanwhileError   another program wrote to an archive (spark)
    │   ├── ObjectStoreError        an object store did not do as asked (spark)
    │   │   └── NoConditionalPutError   it cannot put an object on condition, or does not keep to it (spark)
    │   ├── DamagedFileError        a data file of an archive is not as it was written (spark)
    │   ├── ManifestError           an archive's list of files is not one, or a change would break it (spark)
    │   ├── FilesChangedError       another program removed files of an archive, or put some there (spark)
    │   ├── TableChangedError       another program changed a table of an archive (spark)
    │   ├── TableUnreadableError    a table of an archive is damaged (spark)
    │   └── CatalogUnansweredError  a catalog of Iceberg sent no answer (spark)
    │
    │   Errors that a user's handler raises, or finds raised; the worker settles the entry by them:
    ├── Nack                 this delivery did not work out; give the entry to any consumer
    ├── Reject               the entry is unusable; to the dead-letter stream at once
    ├── BatchError           these entries of a batch have failed, all others are done
    ├── PayloadError         the entry does not fit the handler's annotations
    ├── HandlerTimeoutError  the handler took longer than it may
    ├── JobDeadError         the job whose result was waited for is in the dead-letter stream
    ├── JobCancelledError    the job whose result was waited for was cancelled
    ├── EntryLostError       the entry is another consumer's by now, or gone; its outcome is not ours to decide
    │
    │   Errors that end an operation; the text says what happened and what to do:
    ├── AccessDenied         the server refused user, password or right; trying again does not help (client)
    ├── Withheld             a condition did not hold any more, so the commands were not sent (client)
    ├── WrongReplyError      a server's reply is not of its command's kind (client)
    ├── LettersRefusedError  the server takes no dead letters; entries without one stay pending (client)
    ├── DeadLetterStreamError       the dead-letter stream cannot be used as asked (client)
    ├── LayoutError          the descriptor of a partitioned stream cannot be used (client)
    ├── LeaseLost            a partition is another's by now (worker)
    ├── FatalError           the subscriber cannot go on: wrong type of key, no permission (worker)
    ├── RegistryError        the registry of workers cannot be read or written (worker)
    ├── NotThereError        nothing has that name there (worker)
    ├── NotAddedError        some entries were added, and the next one refused (cli)
    ├── NotReadableError     no such stream or group, or the server does not tell (console)
    │   └── NotAllowedError         the user has no right to look (console)
    ├── StandingStillError   streams went back, and are not archived; the others were (spark)
    ├── ReapError            the script that removes dead consumers did not run (worker)
    ├── HealthError          the health endpoint cannot listen (worker)
    ├── MetricsError         prometheus-client is not installed (worker)
    ├── QueriesError         the server does not let us read the facts about queries (spark)
    ├── NoQueryError         no query has that name or id (spark)
    ├── ArchiveError         Spark ended the archive's job (spark)
    ├── UndecodableError     a payload is not of its declared form (spark)
    ├── ReplayError          the target did not take the entries; those written stay (spark)
    ├── MigrationError       a copy to or from another server cannot go on (migrate)
    │   ├── LinkError               one end cannot be reached, or does not let us in
    │   │   └── NoEntryError        it refused the user or the password
    │   ├── RefusedError            a server refused a command
    │   ├── ChangedError            the source is being written to
    │   └── UnequalError            the copy is not like the source
    ├── ChangeRefusedError   a change is not made: facts, server or rights do not allow it (console)
    │   └── TargetMissingError      what it is to change is not there (console)
    ├── UnreachableError     the server cannot be reached, or refuses to talk to us (maintenance)
    ├── NoPageError          an address that no page of the console has (console)
    ├── NoFileError          there is no dashboard and no file of rules of that name (dashboards)
    ├── FileThereError       a file is there and says something else; nothing was written (dashboards)
    ├── AclFileError         the ACL file is wrong; nothing of it was taken (commands)
    └── RuleError            a rule of ACL SETUSER is wrong (commands)
        └── UnmatchedError          a parenthesis that is not closed

Only ``CommandError`` and ``ProtocolError`` may reach a network client; the rest end in a log line or an exit code.

Three kinds are not in the tree. ``Blocked``, a handler that waits, is not a fault. Other libraries expect to catch
theirs: ``Redirected`` is a ConnectionError, ``TooDeepError`` a ValueError, ``StillBusyError`` an AssertionError,
``AckMessage`` FastStream's. ``MalformedError``, ``GroupMissing`` and ``DeliveryLimitError`` never leave their module.
A test compares this tree with the source.
"""

from typing import ClassVar


class MillstreamError(Exception):
    """Base class of every error that this package raises on purpose.

    What to do: catch it to handle all errors of this package alike. The subclasses name the cause.

    Attributes:
        exit_code: the exit code of a subcommand that this error ends, the same in all of them.
    """

    exit_code: ClassVar[int] = 1


class CommandError(MillstreamError):
    """The server refused a command before it changed anything.

    ``args[0]`` is the whole error line in Redis's words, code first: ``"ERR syntax error"``.

    What to do: correct the command. The first word of the message is Redis's code for the kind of error.
    """

    @property
    def line(self) -> str:
        """The reply line without its leading ``-``."""
        return str(self.args[0])


class ProtocolError(MillstreamError):
    """The peer sent bytes that are not RESP, or exceeded a limit; ``args[0]`` is Redis's message.

    What to do: look for another writer on the connection, or a client that does not use RESP. A parameter raises each
    limit.
    """


class UsageError(MillstreamError):
    """The call is invalid; the message names the right one. Nothing was done.

    What to do: change the call as the message describes.
    """

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A setting, option or URL is invalid; the message names it and the accepted values.

    What to do: give the setting one of the values that the message names.
    """


class NotReachedError(ConfigError):
    """The server that a setting or option names does not answer; the message names it.

    What to do: start that server, or correct the address.
    """

    exit_code: ClassVar[int] = 3


class NotLetInError(ConfigError):
    """The server that a setting or option names refuses the user, the password or a right.

    What to do: correct the user and password in the setting, option or variable that the message names. Or let an
    administrator grant the right (ACL SETUSER).
    """

    exit_code: ClassVar[int] = 5


class NotFoundError(ConfigError):
    """A setting, an option or an argument of the command line names an object that does not exist.

    What to do: correct the name, which is in the message.
    """

    exit_code: ClassVar[int] = 4


class Disconnected(MillstreamError):  # noqa: N818 - a state of the connection, not a fault of the caller
    """The connection broke before the reply came, or could not be made.

    What to do: connect again. Send a command again only if it may run twice, or if ``sent`` is False.

    Attributes:
        sent: False when nothing was written, so that the command surely did not run and may be sent again; else
            the command may have run.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str = "", *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StorageError(MillstreamError):
    """The data directory cannot be used; the subclasses give the cause and the remedy.

    What to do: look up the file that the message names in docs/operations.md before you remove anything.
    """


class LogCorruptError(StorageError):
    """A record is damaged, and valid records follow it.

    The server cuts only a torn record at the end of the log. A cut here would drop acknowledged records.

    What to do: run `millstream log check` on a copy. Then restore a backup, or cut the log with `millstream log cut`.
    """

    def __init__(self, message: str, *, path: str, offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class LogLockedError(StorageError):
    """Another living process uses the data directory, and only one may.

    ``pid`` is that process, and ``address`` its address (``"unix:/run/x.sock"``); each is None if it is not known.

    What to do: stop the process that the message names, or connect to its server instead of opening the directory.
    """

    def __init__(self, message: str, *, pid: int | None = None, address: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.address = address


class DiskError(StorageError):
    """A write, fsync or rename failed. Data that was not yet reported durable may or may not be on disk.

    What to do: check the disk and the system's log, and then start again. The start checks every record.
    """


class DiskFullError(DiskError):
    """The disk or its quota is full. The refused data is kept, and is written once there is space.

    What to do: free space or enlarge the disk. The server then accepts writes again by itself.
    """
