"""Worker processes: one of them, their supervisor, start and end."""
