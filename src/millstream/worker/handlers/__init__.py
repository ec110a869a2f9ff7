"""The user's function: from an entry to a call of it, and from what it returns or raises to what becomes of the entry.

Read ``subscription`` (what is registered), ``message`` (what a handler may ask for and raise), ``binding`` with
``convert`` (from fields to arguments), ``dependencies`` and ``middleware`` (around a call). Then read ``invoke`` (the
call) and ``outcomes`` (what a failure means). ``publish`` and ``sender`` are the other direction, and ``idempotency``
has an effect once however often an entry is delivered.
"""
