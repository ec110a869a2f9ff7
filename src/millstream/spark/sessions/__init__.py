"""Local Spark sessions: ``local`` starts one quickly, and names the missing program if it cannot.

``java_output`` holds Java's output back while it starts, and shows it only after a failure. ``sql`` runs one query of
the command line, in a session of its own, and returns plain values.
"""
