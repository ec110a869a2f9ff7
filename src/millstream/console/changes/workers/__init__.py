"""Orders to workers: ``orders`` and ``reaping`` decide and are PURE, ``making`` asks the server."""
