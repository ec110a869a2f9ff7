"""Engine, commands, log and waiters in one machine that does no I/O of its own; the server and in-process use share it."""
