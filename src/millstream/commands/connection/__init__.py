"""Commands about connections: HELLO, CLIENT, MULTI, publish and subscribe, WAIT."""
