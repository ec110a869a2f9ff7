"""Named limits of the protocol and of a connection, with the effect of exceeding each and Redis's value.

Limits bound the memory that an unknown client can make the server hold. Before AUTH on a server with a password they
are much smaller. This module has no code, so that a review of a client's possible cost reads one page. The code that
enforces a limit is found by its name.
"""

INLINE_MAX = 64 * 1024
"""Bytes of an inline command, or of a ``*n`` or ``$n`` header, without a line end. Beyond it: protocol error
(Redis: 64 KiB).
"""

MULTIBULK_MAX = 2**31 - 1
"""Arguments of one command. Beyond it: protocol error (Redis: INT_MAX). A large count alone takes no memory."""

MULTIBULK_MAX_UNAUTHENTICATED = 10
"""Arguments of one command before AUTH (Redis: 10): enough for HELLO with AUTH and SETNAME."""

BULK_MAX = 512 * 1024 * 1024
"""Bytes of one argument. Beyond it: protocol error (Redis: ``proto-max-bulk-len``, 512 MiB)."""

BULK_MAX_UNAUTHENTICATED = 16 * 1024
"""Bytes of one argument before AUTH (Redis: 16 KiB)."""

QUERY_BUFFER_MAX = 1024 * 1024 * 1024
"""Bytes received and not yet executed. Beyond it: closed without a reply and counted (Redis: 1 GiB)."""

QUERY_BUFFER_MAX_UNAUTHENTICATED = 1024 * 1024
"""Bytes received and not yet executed before AUTH (Redis: 1 MiB)."""

CHANGE_MAX = 1024 * 1024 * 1024
"""Log bytes of the changes of one command, transaction or script. Beyond it: refused, and the command changes nothing
(Redis: none). All these changes form one log record, which must fit in memory a few times.
"""

OUTPUT_HARD_MAX = 256 * 1024 * 1024
"""Bytes of replies that a client has not read. Beyond it: closed and counted. Redis has none for normal clients; this
limit keeps a slow reader from taking the whole memory.
"""

OUTPUT_SOFT_MAX = 64 * 1024 * 1024
"""Bytes of unread replies above which a client is closed after :data:`OUTPUT_SOFT_SECONDS`."""

OUTPUT_SOFT_SECONDS = 60
"""Seconds that a client may stay above the soft limit (Redis's value for replicas and pub/sub)."""

MAX_CLIENTS = 10_000
"""Connections at the same time. Beyond it: an error and a close (Redis: ``maxclients``)."""

KEEPALIVE_SECONDS = 300
"""Seconds of TCP keepalive (Redis: ``tcp-keepalive``), which detects peers that vanished."""
