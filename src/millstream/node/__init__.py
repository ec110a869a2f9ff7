"""Engine, commands, log and waiting clients joined without asyncio; never imports the server."""
