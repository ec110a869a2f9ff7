"""Bytes to values and back (RESP2, RESP3), with every limit by name; never imports the engine or a command."""
