"""The asyncio shell over the node: listeners, sessions, flow control, shutdown; no rule of streams lives here."""
