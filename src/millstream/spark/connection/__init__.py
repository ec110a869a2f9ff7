"""The connections of drivers and tasks to servers: a blocking connection, a router over it, and bulk reads for Arrow.

Read ``connection`` (one socket, packed commands out and replies in) and ``raw_connection`` (the same for replies that
are not parsed). Then read ``routing`` (the server that has a key) and ``router`` (commands to the servers of their
keys). The last two are ``bulk_reader`` (a task's pages, from a replica too) and ``retry`` (errors of a server that is
away).

The users of each part:

- the planner, group mode, views and recovery: ``Router``, which retries, routes by slot, and keeps WATCH and its
  transaction on one connection;
- a task that reads: ``BulkReader``, raw replies over a connection that outlives the task;
- a task that writes: ``write.send_window``, commands sent ahead of their replies over a router's connections;
- the driver of the sink: ``Router``, and its connection where a transaction is sent as bytes.
"""
