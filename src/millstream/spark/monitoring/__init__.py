"""What a server is told of streaming queries, and what a person is told of their errors.

``listener`` hears from Spark and writes, ``progress`` makes a few figures of what it hears, ``store`` is what stands on
the server and how it is read, ``record`` whether that was written by a driver, and ``error_text`` finds the line of
Spark's long errors that says what happened.
"""
