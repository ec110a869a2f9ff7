"""COMMAND INFO's facts beyond the table's rows: tips, rarer flags, and the uses of keys.

ACL uses the same flags (see :mod:`millstream.commands.table.keyspecs`): ``access`` reads a key's content; ``insert``,
``update`` and ``delete`` write it; without these only the key itself is examined (its type, its size).

Sources: https://redis.io/docs/latest/develop/reference/command-tips/,
https://redis.io/docs/latest/develop/reference/key-specs/
"""

_FLAGS = (
    "write readonly denyoom admin pubsub noscript blocking loading stale skip_monitor skip_slowlog fast no_auth "
    "no_mandatory_keys protected no_async_loading no_multi movablekeys allow_busy script_runner"
)
FLAG_ORDER = _FLAGS.split()
"""Every flag, in the order in which Redis shows them."""


def _by_name(table: str) -> dict[str, tuple[str, ...]]:
    """Parse lines of "flags = names": the flags of each name, collected from all lines in order."""
    found: dict[str, tuple[str, ...]] = {}
    for line in table.strip().splitlines():
        words, names = line.split(" = ")
        for name in names.split():
            found[name] = found.get(name, ()) + tuple(words.split())
    return found


MORE_FLAGS = _by_name("""
allow_busy = multi discard watch unwatch auth hello quit reset script|kill shutdown replconf
skip_slowlog = exec
no_async_loading = save bgsave bgrewriteaof
no_mandatory_keys skip_monitor script_runner = eval eval_ro evalsha evalsha_ro
denyoom = subscribe psubscribe
""")
"""Flags without an effect on this server, which clients may still read."""

TIPS = _by_name("""
request_policy:all_shards response_policy:all_succeeded = ping flushdb flushall function|flush
nondeterministic_output = client|info client|list xadd xtrim xpending xclaim xautoclaim xinfo|consumers ttl pttl
nondeterministic_output = object|encoding object|refcount object|idletime object|freq dump hscan time lastsave
request_policy:all_nodes response_policy:all_succeeded = client|setname client|setinfo script|load script|flush
request_policy:all_nodes response_policy:all_succeeded = acl|setuser acl|deluser acl|save config|set config|resetstat
request_policy:all_nodes response_policy:all_succeeded = config|rewrite slowlog|reset
request_policy:multi_shard response_policy:agg_sum = del unlink exists touch
request_policy:all_shards nondeterministic_output_order = keys
nondeterministic_output request_policy:special response_policy:special = scan
request_policy:all_shards response_policy:special nondeterministic_output = randomkey
request_policy:all_shards response_policy:agg_sum = dbsize
request_policy:all_nodes nondeterministic_output = slowlog|get
request_policy:all_nodes response_policy:agg_sum nondeterministic_output = slowlog|len
request_policy:multi_shard response_policy:all_succeeded = mset
request_policy:multi_shard = mget
request_policy:all_shards response_policy:agg_min = wait waitaof
nondeterministic_output_order = hgetall hkeys hvals smembers sinter sunion sdiff function|list command command|info
nondeterministic_output_order = command|docs command|list
request_policy:all_shards response_policy:agg_logical_and = script|exists
request_policy:all_shards response_policy:one_succeeded = script|kill
nondeterministic_output request_policy:all_shards response_policy:special = info
""")
"""Tips about commands for proxies and cluster clients."""

_ONE_USE = _by_name("""
RO = watch exists touch type xlen strlen hlen hexists hstrlen llen zcard scard sismember memory|usage object|encoding
RO = object|refcount object|idletime object|freq tier|usage
RO access = xrange xrevrange xread xreadgroup xpending xinfo|stream xinfo|groups xinfo|consumers get mget getrange
RO access = substr dump ttl pttl expiretime pexpiretime hget hmget hgetall hkeys hvals hscan lrange smembers zscore
RO access = zmscore zrank zrevrank zcount zlexcount zrange zrevrange zrangebyscore zrevrangebyscore zrangebylex
RO access = zrevrangebylex eval_ro evalsha_ro lindex lpos smismember sinter sunion sdiff sintercard zunion zinter zdiff
RO access = zintercard getbit bitcount bitpos bitfield_ro geopos geodist geohash sort sort_ro
RW update = xadd xsetid xcfgset xidmprecord xack xnack xclaim xgroup|setid expire pexpire expireat pexpireat persist
RW update = setrange hset hmset zadd lset hsetex geoadd
RW insert = xgroup|create xgroup|createconsumer append hsetnx lpush rpush sadd linsert lpushx rpushx
RW delete = xtrim xdel xdelex xautoclaim xgroup|destroy xgroup|delconsumer hdel zrem zremrangebyscore zremrangebyrank
RW delete = zremrangebylex srem lrem ltrim
RW update delete = xackdel
RW access update = move getset getex incr decr incrby decrby incrbyfloat hincrby hincrbyfloat zincrby eval evalsha
RW access update = setbit increx
RW access delete = getdel lpop rpop blpop brpop zpopmin zpopmax lmpop blmpop bzpopmin bzpopmax zmpop bzmpop hgetdel
RW access update variable_flags = set bitfield
RW delete variable_flags = delex
OW insert = setnx msetnx
OW update = restore setex psetex mset msetex
RM delete = del unlink
""")

_MOVED = (("RW", "access", "delete"), ("RW", "insert"))
_STORED = (("OW", "update"), ("RO", "access"))

KEY_USES: dict[str, tuple[tuple[str, ...], ...]] = {
    **{name: (words,) for name, words in _ONE_USE.items()},
    **dict.fromkeys(("lmove", "blmove", "rpoplpush", "brpoplpush", "smove"), _MOVED),
    **dict.fromkeys(("sinterstore", "sunionstore", "sdiffstore", "zunionstore", "zinterstore", "zdiffstore"), _STORED),
    **dict.fromkeys(("zrangestore", "bitop"), _STORED),
    "rename": (("RW", "access", "delete"), ("OW", "update")),
    "renamenx": (("RW", "access", "delete"), ("OW", "insert")),
    "copy": (("RO", "access"), ("OW", "update")),
}
"""The uses of a command's keys; several entries are for its keys in turn, the last for all further ones."""

_BY_GET = (b"Keys made by the patterns of BY and GET from what is sorted.", ("RO", "access"))
UNPLACED: dict[str, tuple[tuple[bytes, tuple[str, ...]], ...]] = {
    "sort": (_BY_GET, (b"The key of STORE, which may stand anywhere.", ("OW", "update"))),
    "sort_ro": (_BY_GET,),
}
"""Keys that no rule finds in a command line, with their uses; the notes are Millstream's own."""

_SCRIPT = b"A script may do anything its user may."
KEY_NOTES = {
    "xadd": b"It may trim, so it updates.",
    "set": b"With GET it reads too.",
    "getex": b"It changes when the key dies.",
    "bitfield": b"It may read and write.",
    "eval": _SCRIPT,
    "eval_ro": b"A script may read anything its user may.",
}
"""Notes that explain the flags; the texts are Millstream's own."""
