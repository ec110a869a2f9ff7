"""Dashboards for Grafana and rules for Prometheus, made to be written into a folder and loaded from there.

``grafana`` makes the JSON of a dashboard, ``boards`` says what is on each, and ``catalogue`` names every file. Nothing
here asks a server; which metrics there are is said by those who export them, and tests hold both together.
"""
