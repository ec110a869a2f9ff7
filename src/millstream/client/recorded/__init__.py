"""A report of ``millstream report`` as a server: a line to it returns the replies that its server gave for the report.

A command that the file does not cover is refused, with the reason. Replies that no server sends are found when the file
is opened. ``json_replies`` is the form of replies in the file, ``shapes`` their required form. ``ranges`` joins several
pages of one range.
"""
