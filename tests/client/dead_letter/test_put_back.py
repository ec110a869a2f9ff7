"""Putting back without a server: what is said of a letter that could be neither put back nor written again."""

import pytest

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.dead_letter.put_back import PutBackOutcome, put_back


def test_what_was_put_back_beside_a_letter_that_is_gone_is_still_reported() -> None:
    """EXEC has run: nobody is told that nothing was put back, and every letter of the batch is accounted for."""
    letters = [pack(DeadLetter((b"n", b"1"), "s", f"{n}-0", "g", "c", 1, "reject", "", "", 0, 0)) for n in (1, 2, 3)]
    outcome = PutBackOutcome()
    exchange = put_back("s:dead", ["1-0", "2-0", "3-0"], outcome, 0, all_groups=True)
    assert next(exchange)[0] == ("WATCH", "s:dead")
    rows = [[[f"{n}-0".encode(), flat]] for n, flat in zip((1, 2, 3), letters, strict=True)]
    assert exchange.send([b"OK", *rows]) == [("TYPE", "s"), ("XINFO", "GROUPS", "s")]
    assert exchange.send([b"stream", []])[0] == ("MULTI",)
    full = ValueError("full")
    undone = exchange.send([b"OK", *[b"QUEUED"] * 6, [b"9-0", 1, full, 1, full, 1]])
    assert [command[:2] for command in undone] == [("XADD", "s:dead"), ("XADD", "s:dead")]
    with pytest.raises(StopIteration) as end:
        exchange.send([ValueError("OOM"), b"8-0"])
    assert end.value.value is True
    assert outcome.returned == [("1-0", "s", "9-0")]
    assert outcome.refused == [
        ("2-0", "s: full; the letter is gone, since OOM"),
        ("3-0", "s: full; the letter is now 8-0"),
    ]
