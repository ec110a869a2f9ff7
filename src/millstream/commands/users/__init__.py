"""Users and their rights: who may run what on which keys. No I/O.

``permissions`` has the rules and the answer, ``categories`` which commands a category names, ``accounts`` the users of
a server with the log of refusals. Passwords are kept as SHA-256 and compared in constant time. A user who may do
anything (most do) costs one look into a set for each command.
"""
