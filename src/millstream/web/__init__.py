"""The browser console: pages that show the facts of :mod:`millstream.ops`."""
