"""Lua scripts: the sandbox, the checks before compilation, and the bridge to the commands."""
