"""Dashboards for Grafana and rules for Prometheus, made to be written into a folder and loaded from there.

``grafana`` makes the JSON of a dashboard, ``boards`` has the panels of each, and ``catalogue`` names every file.
Nothing here asks a server. The exporters define the metrics, and tests compare both.
"""
