"""Between replies of a server and Arrow: entries to columns and rows to commands.

Read ``page`` (the result of decoding), then ``decode`` and ``decode_uniform`` (replies to pages). ``columns`` makes the
batches of a schema from pages. ``parse_values`` and ``format_values`` convert text to typed values and back, and
``encode_rows`` converts rows to commands.
"""
