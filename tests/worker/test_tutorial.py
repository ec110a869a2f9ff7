"""The worker's tutorial runs as printed, from the first order to the dead letter that is put back."""

import json
from functools import partial
from pathlib import Path

from support import reader as readers
from support.reader import Reader
from support.readme import block
from support.servers import ServerProcess
from support.waiting import eventually

PAGE = "docs/worker/tutorial.md"
MILK = '    if item == "milk":\n        raise RuntimeError("the dairy does not answer")\n'
line = partial(readers.line, page=PAGE)


def test_a_newcomer_gets_from_the_top_to_the_letter_put_back(our_server: ServerProcess, tmp_path: Path) -> None:
    """The tutorial's steps print its shown output, from the first entry to the mended dead letter."""
    reader = Reader(tmp_path, our_server.url)
    program = block("python", "# shop.py", page=PAGE)
    assert MILK in program
    (tmp_path / "shop.py").write_text(program)
    with our_server.client() as client:
        with reader.runs("millstream run shop:app") as log:
            reader.types(line('"price": 3.5'))
            eventually(lambda: "billing tea: 3.50 (delivery 1)" in log.read_text(), what="the tea is billed")
            reader.types(line('"milk"'))
            reader.types(line('"much"'))
            eventually(lambda: client.xlen("orders:dead") == 2, what="both are dead letters")

        letters = json.loads(reader.types(line("millstream dead ls") + " -o json"))
        reasons = {letter["reason"]: letter for letter in letters}
        assert "could not convert string to float" in reasons["invalid"]["error"]
        milk = reasons["error"]["id"]
        assert "the dairy does not answer" in reader.types(line("dead show").replace("1763721600000-0", milk))

        (tmp_path / "shop.py").write_text(program.replace(MILK, ""))
        reader.types(line("dead retry").replace("1763721600000-0", milk) + " --yes")
        with reader.runs(line("--workers 2")) as log:
            eventually(lambda: "billing milk: 1.20 (delivery 1)" in log.read_text(), what="the milk is billed")
            assert client.xlen("orders:dead") == 1
