"""Middlewares that come with Millstream: tracing, OpenTelemetry metrics, log context."""
