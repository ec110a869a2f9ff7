"""The console in a browser: pages over :mod:`millstream.ops`."""
