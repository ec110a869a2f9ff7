"""The clients of a node: who they are, what they wait for, what they listen to, and what is sent to them.

In the order to read them: ``replies`` (a command's reply as bytes, and the log position that it waits for),
``blocking`` (commands that wait inside the node). Then ``pausing`` (CLIENT PAUSE) and ``sessions`` (all of them, and
what joins these).
"""
