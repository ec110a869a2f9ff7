"""One subscriber at work: it reads entries, runs the handler for each, and hands back what it cannot run.

Read in the order in which an entry moves. ``fetch`` asks the server, ``intake`` says when and handles errors,
``buffer`` holds entries that have not begun. ``lanes`` take them from there, and ``runs`` (or ``batching``) call the
handler and settle the entry by the result. ``key_ordering`` and ``isolation`` come between lanes and runs if asked for;
``group_setup`` makes the group. ``parts`` is the state that all of them share, and ``loop`` puts them together.
"""
