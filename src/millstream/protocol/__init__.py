"""Conversion between bytes and values (RESP2, RESP3), with named limits; never imports the engine or a command."""
