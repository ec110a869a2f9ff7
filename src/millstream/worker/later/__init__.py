"""Schedules of an app: publishing at a later time, and moving what is due into its stream."""
