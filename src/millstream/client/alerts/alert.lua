-- Adds an entry to the stream of alerts while the watcher still has its lease.
-- KEYS: the owner of the lease, the stream. ARGV: the owner's text, the stream's length, and the fields.
-- Returns the id of the entry; nothing if another watcher has the lease, or nobody.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 3))
