"""Reports of streaming queries to a server, and of their errors to a person.

``listener`` hears from Spark and writes, ``progress`` makes a few figures of the events. ``store`` keeps them on the
server and reads them, ``record`` checks that a driver wrote them. ``error_text`` finds the line of Spark's long errors
that says what happened.
"""
