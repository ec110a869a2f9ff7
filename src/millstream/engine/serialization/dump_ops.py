"""The transition by which a dumped value comes back.

PURE. The log holds the payload in our own form, in whatever form RESTORE took it, and the same code loads it. So a
payload that was once valid stays valid: a check that is added later must not refuse what older versions logged.
"""

from millstream.engine.keyspace import Keyspace, transition
from millstream.engine.serialization.dump import load


@transition("restore")
def _restore(space: Keyspace, db: int, key: bytes, payload: bytes, expires_at: int | None) -> None:
    """Make the key hold the payload's value, in place of the present one."""
    base, value = space.databases[db], load(payload)
    base.keys[key] = value
    if expires_at is None:
        base.expires.pop(key, None)
    else:
        base.expires[key] = expires_at
