"""``millstream dead edit``: a payload is corrected and put back for one group. Nothing is lost if the editor fails."""

import json
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from cli.test_dead import add_letter
from millstream.cli.main import main
from millstream.client.dead_letter.letter import DeadLetter, meant_for, pack, take_history
from millstream.worker.handlers.publish import fields_of
from support.servers import ServerProcess


def edit(server: ServerProcess, *words: str, **options: Any) -> Result:
    """Run ``millstream dead edit`` in this process."""
    return CliRunner().invoke(main, ["dead", "edit", *words, "--url", server.url], **options)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of edited texts, moved into the test's own directory."""
    folder = tmp_path / "texts"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def letter(client: redis.Redis) -> str:
    """The id of a dead letter of the stream ``orders``, which has the letter's group and another one."""
    client.xgroup_create("orders", "billing", mkstream=True)
    client.xgroup_create("orders", "mail")
    dead = DeadLetter(
        tuple(fields_of({"item": "tea", "amount": "x"}, {"correlation_id": "c"})), "orders", "1-0", "billing", "c1", 5,
        "error", "ValueError: x", "Traceback ...", 1, 1001,
    )  # fmt: skip
    made: Any = client.execute_command("XADD", "orders:dead", "*", *pack(dead))
    return str(made.decode())


def editor(folder: Path, code: str) -> str:
    """Write a program that changes the file it is given, as an editor does."""
    program = folder / "editor.py"
    program.write_text(f"#!{sys.executable}\nimport json, sys\npath = sys.argv[-1]\ntext = open(path).read()\n{code}\n")
    program.chmod(0o755)
    return f"{program} --wait"


FIX = 'whole = json.loads(text); whole["__data__"]["body"]["amount"] = 7; open(path, "w").write(json.dumps(whole))'


def kept(done: Result) -> Path:
    """Return the path of the kept file that a message names."""
    (name,) = [word.strip(".;:,)") for word in done.stderr.split() if "millstream-" in word and ".json" in word]
    return Path(name)


def test_a_corrected_entry_is_put_back_for_its_group(
    server: ServerProcess, client: redis.Redis, letter: str, tmp_path: Path, temporary: Path
) -> None:
    """A corrected entry is put back in its envelope, with "edited" in its history.

    The letter and the temporary file are gone.
    """
    code = f"{FIX}\nopen({str(tmp_path / 'seen')!r}, 'w').write(path)"
    done = edit(server, "orders", letter, "--yes", "-o", "json", env={"EDITOR": editor(tmp_path, code)})
    assert done.exit_code == 0, done.output
    assert '-      "amount": "x"' in done.stderr
    assert '+      "amount": 7' in done.stderr
    assert json.loads(done.stdout)["returned"] == 1
    ((_, flat),) = raw(client, "orders")
    fields, history = take_history(flat)
    assert fields == fields_of({"item": "tea", "amount": 7}, {"correlation_id": "c"})
    assert (meant_for(history, "orders"), history[-1]["edited"]) == ("billing", True)
    assert client.xlen("orders:dead") == 0
    ((_, kept_of_it),) = client.xrange("millstream:audit")
    assert (kept_of_it[b"action"], kept_of_it[b"group"]) == (b"dead edit", b"billing")
    assert Path((tmp_path / "seen").read_text()).parent == temporary
    assert list(temporary.iterdir()) == []


def raw(client: redis.Redis, key: str) -> list[Any]:
    """Return entries as the server sends them."""
    found: Any = client.execute_command("XRANGE", key, "-", "+")
    return [(ident, [part for pair in fields.items() for part in pair]) for ident, fields in found]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("sys.exit(3)", "ended with code 3"),
        ('open(path, "w").write("{")', "the edited text is invalid"),
        ("import os; os.remove(path)", "cannot be read"),
    ],
)
def test_an_editor_that_fails_changes_nothing(
    server: ServerProcess, client: redis.Redis, letter: str, tmp_path: Path, code: str, why: str
) -> None:
    """If the editor fails, the letter stays, and the message names a private file with the edited text."""
    done = edit(server, "orders", letter, "--yes", env={"VISUAL": editor(tmp_path, code)})
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert why in done.stderr
    assert (client.xlen("orders"), client.xlen("orders:dead")) == (0, 1)
    path = kept(done)
    if "remove" not in code:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.unlink()


def test_nothing_happens_without_a_change_or_a_yes(
    server: ServerProcess, client: redis.Redis, letter: str, tmp_path: Path
) -> None:
    """Without a change, in a dry run, without a confirmation, or without an editor, the letter stays."""
    same = edit(server, "orders", letter, env={"EDITOR": editor(tmp_path, "pass")})
    assert (same.exit_code, "Nothing was changed" in same.stderr) == (0, True)
    dry = edit(server, "orders", letter, "--dry-run", env={"EDITOR": editor(tmp_path, FIX)})
    assert (dry.exit_code, '+      "amount": 7' in dry.stderr) == (0, True)
    unasked = edit(server, "orders", letter, env={"EDITOR": editor(tmp_path, FIX)})
    assert (unasked.exit_code, "use --yes" in unasked.stderr) == (2, True)
    assert '"amount": 7' in kept(unasked).read_text()
    kept(unasked).unlink()
    missing = edit(server, "orders", letter, env={"EDITOR": "/no/such/editor", "VISUAL": ""})
    assert "cannot be started" in missing.stderr
    kept(missing).unlink()
    assert (client.xlen("orders"), client.xlen("orders:dead")) == (0, 1)


def test_a_corrected_file_takes_the_editors_place(server: ServerProcess, client: redis.Redis, letter: str) -> None:
    """``dead edit --print`` prints the document, and a corrected file can be put back. A failing one stays a letter."""
    document = json.loads(edit(server, "orders", letter, "--print").stdout)
    document["__data__"]["body"]["amount"] = 8
    refused = edit(server, "orders", letter, "--from", "-", "--yes", input="{}")
    assert (refused.exit_code, "at least one field" in refused.stderr) == (2, True)
    client.xgroup_destroy("orders", "billing")  # no group there would run it
    stays = edit(server, "orders", letter, "--from", "-", "--yes", input=json.dumps(document))
    assert (stays.exit_code, client.xlen("orders"), client.xlen("orders:dead")) == (1, 0, 1), stays.output
    client.xgroup_create("orders", "billing", id="0")
    done = edit(server, "orders", letter, "--from", "-", "--yes", input=json.dumps(document))
    assert (done.exit_code, client.xlen("orders"), client.xlen("orders:dead")) == (0, 1, 0), done.output
    assert "there is no letter" in edit(server, "orders:dead", letter, "--print").stderr


def test_what_is_no_letter_is_not_edited(server: ServerProcess, client: redis.Redis, letter: str) -> None:
    """An entry that is not a dead letter cannot be edited."""
    client.execute_command("XADD", "orders:dead", "99999999999999-0", "a", "b")
    done = edit(server, "orders", "99999999999999-0", "--print")
    assert (done.exit_code, "not a dead letter" in done.stderr) == (2, True)


def test_a_missing_file_and_an_existing_one_are_named_without_the_number_of_an_error(
    server: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A missing file of corrections, and an export over an existing file, are errors in plain words."""
    letter = add_letter(client, "orders:dead")
    gone = edit(server, "orders", letter, "--from", str(tmp_path / "gone.json"), "--yes")
    assert (gone.exit_code, "does not exist" in gone.stderr, "Errno" in gone.stderr) == (1, True, False)
    there = tmp_path / "dead.jsonl"
    there.write_text("mine")
    words = ["dead", "export", "--url", server.url, "orders", "--to", str(there)]
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code, "exists already" in refused.stderr, there.read_text()) == (1, True, "mine")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a": 1,\n "b": }', "it is not JSON from line 2, column 7 on."),
        (b'{"a": 1', "it ends too early."),
        (b"\xff", "it is not UTF-8."),
        (b"[" * 3000, "it is nested"),
        (b"[]", "an entry needs at least one field."),
    ],
)
def test_an_invalid_file_is_named_with_the_place_of_its_fault(
    server: ServerProcess, letter: str, tmp_path: Path, data: bytes, why: str
) -> None:
    """An invalid file of corrections is an error with line and column."""
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    done = edit(server, "orders", letter, "--from", str(file), "--yes")
    assert (done.exit_code, f"bad.json is invalid: {why}" in done.stderr) == (2, True), done.stderr
    assert "correct the file" in done.stderr
