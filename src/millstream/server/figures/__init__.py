"""INFO's figures of the machine and of time: the system's figures of the process, and rates."""
