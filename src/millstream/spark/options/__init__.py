"""The options of ``format("millstream")``: text from Spark in, one checked value out.

Read ``names`` (which options there are, and where each does something), ``common`` (what reading and writing share),
``read`` and ``write`` (their values).
"""
