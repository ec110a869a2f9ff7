"""INFO's figures of the machine and of time: the system's figures about the process, and rates."""
