"""One running subscriber: it reads entries, runs the handler for each, and releases those that it cannot run.

Read in the order in which an entry moves. ``fetch`` reads from the server; ``intake`` decides when, and handles errors.
``buffer`` holds entries that have not begun. ``lanes`` take them from there, and ``runs`` (or ``batching``) call the
handler and settle the entry by the result. ``key_ordering`` and ``isolation`` come between lanes and runs if needed;
``group_setup`` creates the group. ``parts`` is the state that all of them share, and ``loop`` joins them.
"""
