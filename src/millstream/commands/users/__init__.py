"""Users and their rights: who may run what on which keys. No I/O."""
