"""Middlewares that come with the package. Each stands alone: OpenTelemetry's traces, its metrics, and log context.

They use what any user's middleware may (``millstream.worker.handlers.middleware``), and nothing else of the worker.
"""
