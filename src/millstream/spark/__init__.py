"""Streams as DataFrames; reaches a server only through ``millstream.client``, never the engine or the server."""
