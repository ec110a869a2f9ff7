"""The fence's script ``fence.lua``, and the special values of its arguments.

Owner and delivery count together prove that this consumer still owns an entry. A claim by any consumer, even one of the
same name, changes the count. The script runs on any server with EVAL since Redis 6.2: it only needs ``redis.pcall`` and
the commands themselves. The script for dead letters is ``client/dead_letter/dead_letter.lua``.
"""

from hashlib import sha1

from millstream.paths import packaged

#: Replaces a delivery count if only the owner matters.
ANY = 0

#: Row of the failure log that must be deleted; an empty one stays unchanged.
FORGET = "-"

MOVE = packaged("millstream.worker.settlement", "fence.lua")
MOVE_SHA = sha1(MOVE.encode(), usedforsecurity=False).hexdigest()
