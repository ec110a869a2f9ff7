"""What a handler is given: the state it may read, the session, the parameters, and the ways to change anything."""
