"""Decisions from values alone: the life of an entry, retries, counters. No I/O, no clock, no chance of its own.

Read ``lifecycle`` (what may happen to an entry), then ``retry`` (what should, after a failure or a crash).
``stats`` and ``histogram`` count it, ``error_text`` puts it in words, ``pause`` is an order from outside.
``answers`` has the exceptions by which a handler decides, and ``progress`` is how a handler gets on.
"""
