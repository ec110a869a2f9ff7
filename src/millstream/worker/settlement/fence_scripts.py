"""The fence's script ``fence.lua``, and the words of its arguments that have a meaning of their own.

Owner and delivery count together are the proof that an entry is ours: a claim by anybody, by the same consumer name
included, changes the count. The script runs on any server with EVAL since Redis 6.2: what it needs are ``redis.pcall``
and the commands themselves. The one that writes dead letters is ``client/dead_letter/dead_letter.lua``.
"""

from hashlib import sha1

from millstream.paths import packaged

#: In place of a delivery count: the owner is enough.
ANY = 0

#: A row of the failure log that is to be forgotten; an empty one is left as it is.
FORGET = "-"

MOVE = packaged("millstream.worker.settlement", "fence.lua")
MOVE_SHA = sha1(MOVE.encode(), usedforsecurity=False).hexdigest()
