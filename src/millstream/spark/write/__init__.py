"""Writing DataFrames to streams, once: staged by tasks, made visible by the driver.

Read ``sink`` (the calls of Spark), ``staging`` and ``send_window`` (a task stores its rows on the server, invisible to
readers). Then read ``commit`` and ``commit_record`` (the driver decides the batch's rows). ``publish`` and ``pieces``
turn staged rows into entries, and ``server_errors`` explains error replies. The keys are in ``model.keys``.
"""
