"""Dashboards for Grafana and rules for Prometheus, which a command writes to a folder.

``grafana`` makes the JSON of a dashboard, ``boards`` has the panels of each, and ``catalogue`` names every file. This
part connects to no server. The exporters define the metrics, and tests compare both.
"""
