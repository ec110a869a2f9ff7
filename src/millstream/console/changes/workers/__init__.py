"""What workers are told: ``orders`` and ``reaping`` decide and are PURE, ``making`` asks the server."""
