"""The script of limits, see :mod:`millstream.client.limits.rate` for its keys."""

from millstream.client.later.scripts import ServerScript

SCRIPT = ServerScript.beside("millstream.client.limits", "limit.lua")
