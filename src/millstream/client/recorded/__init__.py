"""A report of ``millstream report`` as a server: a line to it answers what its server answered when it was written.

What the file does not hold is refused with words that say so, what is not as a server sends it is found out when the
file is opened. ``json_replies`` is how replies stand in the file, ``shapes`` what they must look like, ``ranges`` what
several pages of one range say together.
"""
