"""Spark queries and archives."""
