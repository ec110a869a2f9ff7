"""What a primary's server does: ``making`` makes copies, ``replicas`` sends them and the stream."""
