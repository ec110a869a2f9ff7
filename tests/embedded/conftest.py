"""The fixtures that millstream provides for its users' tests, used for its own tests."""

from millstream.testing import (
    millstream_any_url,
    millstream_clock,
    millstream_memory,
    millstream_server,
    millstream_url,
)

__all__ = ["millstream_any_url", "millstream_clock", "millstream_memory", "millstream_server", "millstream_url"]
