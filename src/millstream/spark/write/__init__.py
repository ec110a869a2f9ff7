"""Writing DataFrames to streams, once: staged by tasks, made visible by the driver.

Read ``sink`` (the calls of Spark), ``staging`` and ``send_window`` (a task stores its rows on the server, invisible to
readers). Then read ``commit`` and ``commit_record`` (the driver decides the batch's rows), ``publish`` and ``pieces``
(staged rows become entries), and ``server_errors`` (the meaning of an error reply). The keys are in ``model.keys``.
"""
