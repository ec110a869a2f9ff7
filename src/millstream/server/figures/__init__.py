"""What INFO shows of the machine and of time: what the system says of the process, and rates."""
