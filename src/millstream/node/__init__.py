"""Engine, commands, log and waiters joined, with no I/O of its own; the server and in-process use share it."""
