"""Servers that are not Redis: one sentence and an exit code, whatever they reply."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from support.answers import WRONG, same_answer
from support.ports import free_port

ASKED = """
    stream ls; stream show s; stream get s 1-1; stream tail s; stream tail s -n 5; stream gaps s; stream add s n=1
    stream trim s --minid 5 --yes; stream rm s --yes; group ls; group ls s; group show s g
    group rewind s g --to end --yes; group create s g --yes; group rm s g --yes; pending ls s g
    pending ack s g --all --yes; consumer ls s g; consumer rm s g c --yes; worker ls; worker show w
    worker pause s g --reason r; worker reap s; dead ls; dead ls s; dead show s 1-1; dead retry s --all --yes
    audit ls; audit undo x --yes; check; server show; server tier; server vacuum; report -o FILE; spark ls; spark show q
    recover s --group g --min-idle 1h --verdict release
"""
"""Command lines that are run with --url."""

NAMED = """
    doctor URL; export URL FILE; import URL --to memory://; archive URL s --to DIR --dry-run
    replay URL s --to URL --as copy
"""


def lines(text: str) -> list[list[str]]:
    """Return the words of each command line."""
    return [line.split() for line in text.replace("\n", ";").split(";") if line.strip()]


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
def test_no_reply_is_a_traceback(tmp_path: Path, reply: bytes) -> None:
    """Each subcommand ends with a documented code, and with a sentence on failure, for any reply."""
    with same_answer(reply) as url:
        for words in [[*each, "--url", url] for each in lines(ASKED)] + lines(NAMED):
            files = {"URL": url, "FILE": str(tmp_path / "file"), "DIR": str(tmp_path / "dir")}
            done = CliRunner().invoke(main, [files.get(word, word) for word in words])
            assert not isinstance(done.exception, Exception), (words, done.exception)
            assert done.exit_code in {0, 1, 2, 3, 4, 5}, (words, done.output)
            if words[0] == "doctor":  # which reports it among its findings
                assert (done.exit_code, "problem" in done.stdout) == (3, True), done.output
                continue
            assert done.exit_code == 0 or done.output.lower().startswith("millstream "), (
                words,
                done.output,
            )  # of check on stdout


def test_the_doctor_and_a_backup_show_no_secret(tmp_path: Path) -> None:
    """``doctor`` and ``backup`` name a failing server by its URL without the password."""
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    doctor, backup = ("doctor", url), ("backup", url, str(tmp_path / "b"))
    for words, code, named in ((doctor, 2, "redis://:***@127.0.0.1"), (backup, 1, "redis://:***@127.0.0.1")):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, "secret" in done.output, named in done.output) == (code, False, True)


def test_the_sentence_says_what_to_look_at() -> None:
    """The sentence names the server, the fault and its place, without secrets."""
    with same_answer(WRONG["OK"]) as url:
        place = url.removeprefix("redis://")
        done = CliRunner().invoke(main, ["group", "ls", "--url", f"redis://:secret@{place}"])
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"millstream group ls: the reply of redis://:***@{place} cannot be read (TypeError in reading.py:"
    )
    assert "either the server is neither Redis nor Millstream, or this is a fault of Millstream" in done.stderr
