"""Users and their rights to commands, keys and channels. No I/O.

``permissions`` has the rules and their check, ``categories`` the commands of each category, ``accounts`` the users of a
server and the log of refusals. Passwords are stored as SHA-256 and compared in constant time. For an unrestricted user
(most are), the check is one set lookup for each command.
"""
