"""The user's function: the call for an entry, and the entry's outcome from its result or exception.

Read ``subscription`` (the registered function), ``message`` (the object for a handler), and ``binding`` with
``convert`` (from fields to arguments). Then read ``dependencies`` and ``middleware`` (around a call), ``invoke`` (the
call) and ``outcomes`` (the decision after a failure). ``publish`` and ``sender`` are the other direction.
``idempotency`` makes an effect happen once, however often an entry is delivered.
"""
