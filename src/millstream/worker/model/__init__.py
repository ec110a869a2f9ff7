"""Decisions computed from values alone: the life of an entry, retries, counters. No I/O, no clock, no randomness.

Begin with ``lifecycle`` (the possible events of an entry), then ``retry`` (the decision after a failure or a crash).
``stats`` and ``histogram`` count runs and entries, ``error_text`` formats errors, and ``pause`` describes a pause.
``answers`` has the exceptions by which a handler decides, and ``progress`` describes the state of a handler.
"""
