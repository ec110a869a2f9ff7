"""Smoke test of an installed wheel: run its native core, add an entry and read it."""

import millstream
from millstream import core

if __name__ == "__main__":
    with millstream.connect("memory://", decode_responses=True) as client:
        client.xadd("numbers", {"n": "1"}, id="1-1")
        found = client.xrange("numbers")
    if (core.NAME, found) != (core.NATIVE, [("1-1", {"n": "1"})]):
        raise SystemExit(f"the {core.NAME} core answered {found}")
    print(f"Millstream {millstream.__version__}: the native core answers")
