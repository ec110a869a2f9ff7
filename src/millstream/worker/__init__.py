"""The worker: functions run for the entries of streams, every entry ending acked, pending or dead.

Read ``loop`` first; it drives two pure modules, ``settle`` (what may happen to an entry) and ``policy`` (what should),
and leaves storing outcomes to ``ledger``, ``burial`` and ``leases``, getting entries to ``reading``, and those that may
have killed a process to ``records``, ``suspects`` and ``solitude``.
"""
