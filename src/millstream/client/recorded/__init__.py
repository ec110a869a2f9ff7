"""A file of ``millstream report`` in place of a server: a line to it returns the replies that the file recorded.

A command that the file does not cover is refused, with the reason. Replies that no server sends are found when the file
is opened. ``json_replies`` is the form of replies in the file, ``shapes`` their required form. ``ranges`` joins several
pages of one range.
"""
