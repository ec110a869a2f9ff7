"""Reports of streaming queries to a server, and of their errors to a person.

Spark calls ``listener``, which writes the reports; ``progress`` makes a few figures of the events. ``store`` keeps them
on the server and reads them, ``record`` checks that a driver wrote them. ``error_text`` finds the line with the cause
in Spark's long errors.
"""
