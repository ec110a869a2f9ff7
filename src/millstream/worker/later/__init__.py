"""Scheduled entries of an app: publish them for a later time, and move due ones into their stream."""
