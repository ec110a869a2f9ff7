"""The clients of a node: their sessions, their waits, their subscriptions, and the output sent to them.

In the order to read them: ``replies`` (a command's reply as bytes, and the log position that it waits for),
``blocking`` (commands that wait inside the node). Then ``pausing`` (CLIENT PAUSE) and ``sessions`` (all sessions, and
the class that uses the other modules).
"""
