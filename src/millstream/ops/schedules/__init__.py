"""Recurring schedules: timetables that the server keeps, with the firing that waits."""
