"""Arguments to engine calls to replies, one file a family; never imports asyncio, sockets, the log or RESP bytes."""
