"""Replies of a server as JSON: text as it is, other bytes as ``{"base64": ...}``, refusals as ``{"error": ...}``."""

import base64
import binascii
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

Reply: TypeAlias = Any

_HIGHEST = 2**64
DEEPEST = 12
"""Most levels of lists in a reply; XINFO STREAM FULL has seven."""


def json_of(reply: Reply) -> object:
    """Return a reply in the form of the file."""
    if isinstance(reply, bytes):
        try:
            return reply.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(reply).decode()}
    if isinstance(reply, str):
        return json_of(reply.encode(errors="surrogateescape"))
    if isinstance(reply, Exception):
        return {"error": str(reply)}
    if isinstance(reply, list | tuple):
        return [json_of(each) for each in reply]
    return reply


def reply_of(value: object, depth: int = 0) -> Reply:
    """Return the reply from its form in the file."""
    if isinstance(value, str):
        return value.encode()  # a lone surrogate also raises a ValueError
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and -_HIGHEST < value < _HIGHEST):
        return value
    if isinstance(value, list) and depth < DEEPEST:
        return [reply_of(each, depth + 1) for each in value]
    if isinstance(value, dict) and len(value) == 1:
        ((name, text),) = value.items()
        if name == "error" and isinstance(text, str):
            return ResponseError(text)
        if name == "base64" and isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                raise ValueError("its base64 is not valid") from None
    raise ValueError("it has a value that is not a reply")
