"""The tree of errors, with the party at fault and the state after each.

::

    MillstreamError
    ├── CommandError         a command was refused; nothing changed; its text is the reply (the client's fault)
    │   ├── PatternTooCostlyError   its patterns would keep other clients waiting (glob)
    │   └── SyntaxRefusedError      Redis's "ERR syntax error" (commands)
    ├── ProtocolError        the peer sent bytes that are not RESP; the connection cannot go on (the peer's fault)
    │   └── QueryBufferError        it exceeded the limit of unprocessed bytes; closed without a reply (protocol)
    ├── UsageError           this library was called wrongly (the caller's fault; ``ConfigError`` for settings)
    │   ├── ConfigError
    │   │   ├── NotReachedError     the server that a setting names does not answer
    │   │   ├── NotLetInError       it refused the setting's user or password
    │   │   └── NotFoundError       no object has the name that it gives
    │   │       ├── NoArchiveError      the directory holds no archive (spark)
    │   │       └── NoContextError      the user has no context with that name (cli)
    │   ├── AlreadySettledError     an entry was given a second outcome (worker)
    │   ├── DataLossError           entries that a query had to read are gone (spark)
    │   ├── NothingChosenError      a change has no selection (console)
    │   ├── ListenError             the server cannot listen there (server)
    │   ├── ReplacedError           a stream is not the one that was archived (spark)
    │   ├── PortError               the console cannot listen there (console)
    │   └── TlsError                the TLS files cannot be used (server)
    ├── LinkLostError        the connection to the primary ended; the server tries again (server)
    ├── FailoverRefusedError  the server does not give up its role (cli)
    ├── NotHeldError         the primary sent a command that cannot be obeyed here; replication stops (node)
    ├── DivergedError        a command of the primary failed here; the replica requests a full copy (node)
    ├── LoadingStoppedError  a stop was requested before the server had read its log (server)
    ├── Disconnected         no reply came; unless ``sent`` is False, the command may have run (not a fault)
    ├── StorageError         the data directory or its disk (writes are refused until it is repaired)
    │   ├── LogCorruptError  valid records follow an invalid one: starting would lose them silently
    │   ├── LogLockedError   another process owns the data directory
    │   ├── DiskError        a write or an fsync failed; the state on disk is unknown past the last good record
    │   │   └── DiskFullError    no space; none of the write is on disk, and a later attempt may succeed
    │   ├── FormatError             the file is not a log, or has an unknown format (persistence)
    │   ├── NewerRecordError        only a newer version reads this record (maintenance)
    │   ├── GivenUpError            rewriting the log ended without a snapshot; the log is unchanged (node)
    │   ├── ArchiveLockedError      another job writes to this archive (spark)
    │   ├── ChangedMeanwhileError   another program wrote to an archive (spark)
    │   ├── ObjectStoreError        an object store did not carry out a request (spark)
    │   │   └── NoConditionalPutError   it does not support conditional writes (spark)
    │   ├── DamagedFileError        a data file of an archive has changed since it was written (spark)
    │   ├── ManifestError           an archive's manifest is invalid, or a change would make it so (spark)
    │   ├── FilesChangedError       another program removed or added files of an archive (spark)
    │   ├── TableChangedError       another program changed a table of an archive (spark)
    │   ├── TableUnreadableError    a table of an archive is damaged (spark)
    │   └── CatalogUnansweredError  an Iceberg catalog sent no reply (spark)
    │
    │   Errors that a user's handler raises or catches; they decide the entry's outcome:
    ├── Nack                 this delivery failed; deliver the entry again, to any consumer
    ├── Reject               the entry is unusable; move it to the dead-letter stream at once
    ├── BatchError           these entries of a batch have failed, all others are done
    ├── PayloadError         the entry does not fit the handler's annotations
    ├── HandlerTimeoutError  the handler exceeded its time limit
    ├── JobDeadError         the job whose result was waited for is in the dead-letter stream
    ├── JobCancelledError    the job whose result was waited for was cancelled
    ├── EntryLostError       another consumer has the entry, or it was deleted; no outcome is recorded
    │
    │   Errors that end an operation; the text says what happened and what to do:
    ├── AccessDenied         the server refused the user, the password or a right; a retry is useless (client)
    ├── Withheld             a condition no longer held, so the commands were not sent (client)
    ├── WrongReplyError      a server's reply has the wrong type for its command (client)
    ├── LettersRefusedError  the server refuses dead letters; failed entries stay pending (client)
    ├── DeadLetterStreamError       the dead-letter stream cannot be used in this way (client)
    ├── AlertStoreError      the server refuses to show or to keep alerts (client)
    ├── HookError            a notification hook could not be told of an alert (console)
    │   └── HookRefusedError        its receiver refused the message (console)
    ├── LayoutError          the descriptor of a partitioned stream cannot be used (client)
    ├── LeaseLost            another worker owns the partition now (worker)
    ├── FatalError           the subscriber cannot go on: wrong type of key, no permission (worker)
    ├── RegistryError        the registry of workers cannot be read or written (worker)
    ├── NotThereError        no object has that name (worker)
    ├── NotAddedError        some entries were added, then the server refused one (cli)
    ├── NotReadableError     the stream or group does not exist or cannot be read (console)
    │   └── NotAllowedError         the user has no right to read it (console)
    ├── StandingStillError   streams are not those archived before, and were skipped (spark)
    ├── ReapError            the script that removes dead consumers did not run (worker)
    ├── HealthError          the health endpoint cannot listen (worker)
    ├── MetricsError         prometheus-client is not installed (worker)
    ├── QueriesError         the server refuses to return the facts about queries (spark)
    ├── NoQueryError         no query has that name or id (spark)
    ├── ArchiveError         Spark ended the archive's job (spark)
    ├── UndecodableError     a payload does not have its declared form (spark)
    ├── ReplayError          the target refused entries; the written ones stay (spark)
    ├── MigrationError       a copy to or from another server cannot go on (migrate)
    │   ├── LinkError               one server cannot be reached, or refuses access
    │   │   └── NoEntryError        it refused the user or the password
    │   ├── RefusedError            a server refused a command
    │   ├── ChangedError            a client is writing to the source
    │   └── UnequalError            the copy differs from the source
    ├── ChangeRefusedError   a change is not made: its condition, the server or rights forbid it (console)
    │   ├── TargetMissingError      the object to change does not exist (console)
    │   └── FormError               the form of a change is incomplete or invalid (console)
    ├── UnreachableError     the server cannot be reached, or refuses access (maintenance)
    ├── NoPageError          the console has no page at this address (console)
    │   └── FilterError             a filter in an address is invalid (console)
    ├── NoFileError          no dashboard or rules file has that name (dashboards)
    ├── FileThereError       a file exists with other contents; nothing was written (dashboards)
    ├── AclFileError         the ACL file is invalid; none of it was loaded (commands)
    └── RuleError            a rule of ACL SETUSER is invalid (commands)
        └── UnmatchedError          a parenthesis that is not closed

Only ``CommandError`` and ``ProtocolError`` may reach a network client; all others end in a log line or an exit code.

Three kinds are not in the tree. ``Blocked``, by which a handler waits, is not a fault. Other libraries catch their
own base classes: ``Redirected`` is a ConnectionError, ``TooDeepError`` a ValueError, ``StillBusyError`` an
AssertionError, ``AckMessage`` one of FastStream. ``MalformedError``, ``GroupMissing`` and ``DeliveryLimitError`` never
leave their module.
A test compares this tree with the source.
"""

from typing import ClassVar


class MillstreamError(Exception):
    """Base class of every error that this package raises on purpose.

    What to do: catch it to handle all errors of this package alike. The subclasses name the cause.

    Attributes:
        exit_code: the exit code of a subcommand that ends with this error. Every subcommand uses the same code.
    """

    exit_code: ClassVar[int] = 1


class CommandError(MillstreamError):
    """The server refused a command before it changed anything.

    ``args[0]`` is Redis's whole error line, code first: ``"ERR syntax error"``.

    What to do: correct the command. The first word of the message is Redis's code for the kind of error.
    """

    @property
    def line(self) -> str:
        """Return the reply line without its leading ``-``."""
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


def require(call: str, option: str, value: object, fine: object, must: str) -> None:
    """Refuse the value of a call's option unless it is fine; ``must`` says what it must be, or what to write."""
    if not fine:
        raise ConfigError(f"{call}({option}={value!r:.80}) is invalid: it must be {must}.")


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
