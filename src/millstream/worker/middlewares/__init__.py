"""Middlewares that come with the package: OpenTelemetry's traces, its metrics, and log context. Each works alone.

They use only the interface for users' middlewares (``millstream.worker.handlers.middleware``).
"""
