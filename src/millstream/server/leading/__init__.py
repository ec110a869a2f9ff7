"""What a primary's server does: ``replicas`` sends them copies and the stream, ``copies`` is one copy."""
