"""Between replies of a server and Arrow: entries to columns and rows to commands.

Read ``page`` (the result of decoding), ``decode`` and ``decode_uniform`` (replies to pages), ``columns`` (pages to the
batches of a schema), ``parse_values`` and ``format_values`` (text and typed values), ``encode_rows`` (rows to
commands).
"""
