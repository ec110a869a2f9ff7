"""Subscribers that read, claim, retry and dead-letter; reach a server only through ``millstream.client``."""
