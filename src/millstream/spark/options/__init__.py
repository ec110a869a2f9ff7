"""The options of ``format("millstream")``: text from Spark in, one checked value out.

Read ``names`` (the options, and the uses in which each has an effect), ``common`` (parts that reading and writing
share), ``read`` and ``write`` (their values).
"""
