"""Commands on keys and on values that are no streams: strings, hashes, lists, sets, sorted sets, expiry, DUMP."""
