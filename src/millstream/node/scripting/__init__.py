"""Lua scripts: the sandbox, what is refused before it is compiled, and the bridge to the commands."""
