"""The fixtures that millstream gives to its users' tests serve its own as well."""

from millstream.testing import (
    millstream_any_url,
    millstream_clock,
    millstream_memory,
    millstream_server,
    millstream_url,
)

__all__ = ["millstream_any_url", "millstream_clock", "millstream_memory", "millstream_server", "millstream_url"]
