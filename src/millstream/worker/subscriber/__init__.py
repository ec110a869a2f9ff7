"""One subscriber at work: it reads entries, runs the handler for each, and hands back what it cannot run.

The way of an entry is the order to read: ``fetch`` asks the server, ``intake`` says when and meets what goes wrong,
``buffer`` holds what has not begun, ``lanes`` take it from there, ``runs`` (or ``batching``) call the handler and
settle the entry by how that ended. ``key_ordering`` and ``isolation`` stand between lanes and runs where they are asked
for; ``group_setup`` makes the group. ``parts`` is what all of them share, and ``loop`` puts them together.
"""
