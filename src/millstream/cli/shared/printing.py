"""Values as text that is safe to print: the shell's name for ``millstream.texts``, which the console uses as well."""

from millstream.texts import Kind, csv_cell, in_one_line, json_text, plain, shown, size_text, span_text, time_text

__all__ = ["Kind", "csv_cell", "in_one_line", "json_text", "plain", "shown", "size_text", "span_text", "time_text"]
