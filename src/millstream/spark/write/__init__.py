"""Writing DataFrames to streams, once: staged by tasks, made visible by the driver.

Read ``sink`` (what Spark calls), ``staging`` and ``send_window`` (a task keeps its rows in the server, unseen),
``commit`` and ``commit_record`` (the driver decides what the batch is), ``publish`` and ``pieces`` (staged rows become
entries), ``server_errors`` (what a refusal means). The keys are in ``model.keys``.
"""
