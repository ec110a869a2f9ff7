"""Handlers over all workers, and the timeline of one entry's runs."""
