"""Recurring schedules: timetables on the server, each with its next firing."""
