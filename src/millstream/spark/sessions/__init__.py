"""Local Spark sessions: ``local`` starts one quickly, and names the missing program if it cannot.

``java_output`` keeps what Java prints while it starts until it is known whether it matters; ``sql`` is one query of the
command line, from a session of its own to plain values.
"""
