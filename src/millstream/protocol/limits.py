"""Every limit of the protocol and of a connection, by name, with Redis's figure and the effect of passing it.

Limits bound the memory that a stranger can make the server hold: before AUTH on a server with a password they are much
smaller. They are here, without code, so that a review of a peer's possible cost reads one page. The code that keeps
each is found by its name.
"""

INLINE_MAX = 64 * 1024
"""Bytes of an inline command, or of a ``*n`` or ``$n`` header, without a line end; past it: protocol error
(Redis: 64 KiB)."""

MULTIBULK_MAX = 2**31 - 1
"""Words of one command; past it: protocol error (Redis: INT_MAX). Costs nothing until the words come."""

MULTIBULK_MAX_UNAUTHENTICATED = 10
"""The same before AUTH (Redis: 10): enough for HELLO with AUTH and SETNAME."""

BULK_MAX = 512 * 1024 * 1024
"""Bytes of one word; past it: protocol error (Redis: ``proto-max-bulk-len``, 512 MiB)."""

BULK_MAX_UNAUTHENTICATED = 16 * 1024
"""The same before AUTH (Redis: 16 KiB)."""

QUERY_BUFFER_MAX = 1024 * 1024 * 1024
"""Bytes received and not yet executed; past it: closed without a reply, counted (Redis: 1 GiB)."""

QUERY_BUFFER_MAX_UNAUTHENTICATED = 1024 * 1024
"""The same before AUTH (Redis: 1 MiB)."""

CHANGE_MAX = 1024 * 1024 * 1024
"""Bytes that the changes of one command, transaction or script take in the log; past it: refused, and nothing of the
command in question is done (Redis: none). A log record is one of them, whole, and must fit in memory a few times."""

OUTPUT_HARD_MAX = 256 * 1024 * 1024
"""Bytes of replies a client has not taken; past it: closed, counted (Redis: none for normal clients; a finite one keeps
one slow reader from taking the whole memory)."""

OUTPUT_SOFT_MAX = 64 * 1024 * 1024
"""The same, if it stays above this for :data:`OUTPUT_SOFT_SECONDS`."""

OUTPUT_SOFT_SECONDS = 60
"""Seconds that a client may stay above the soft limit (Redis's figure for replicas and pub/sub)."""

MAX_CLIENTS = 10_000
"""Connections at the same time; past it: an error and a close (Redis: ``maxclients``)."""

KEEPALIVE_SECONDS = 300
"""TCP keepalive (Redis: ``tcp-keepalive``): finds peers that vanished without a word."""
