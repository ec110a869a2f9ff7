"""``docs/shell.md``: its command lines run, and its tables match the code."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.cli.shared.output import EXIT_CODES, FORMATS
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.later import schedule
from millstream.client.later.recurring import KEY, Recurring
from millstream.client.later.timetable import timetable
from support.servers import ServerProcess
from support.source import ROOT

PAGE = (ROOT / "docs/shell.md").read_text()
LINES = [line for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in text.splitlines()]
NOUNS = ("stream", "group", "pending", "consumer", "server", "audit", "dead", "worker", "later", "schedule", "limit")


def rows(heading: str) -> list[str]:
    """Return the first cells of the table with this heading."""
    text = PAGE.partition(f"\n{heading}\n")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in text.splitlines()[1:]]


def commands(found: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Return every subcommand below a command."""
    if not isinstance(found, click.Group):
        yield name, found
        return
    context = click.Context(found)
    for word in found.list_commands(context):
        inner = found.get_command(context, word)
        assert inner is not None
        yield from commands(inner, f"{name} {word}")


def every() -> list[tuple[str, click.Command]]:
    """Return every subcommand of the console's nouns."""
    context = click.Context(main)
    return [each for noun in NOUNS for each in commands(main.get_command(context, noun) or main, noun)]


@pytest.mark.parametrize("line", LINES)
def test_each_line_of_the_page_runs(server: ServerProcess, client: redis.Redis, line: str) -> None:
    """Each command line of the page runs as printed on a server with a lagging group and a dead letter."""
    for number in range(1, 5):
        client.xadd("orders", {"amount": 100 * number}, id=f"{number}-0")
    client.xadd("orders", {"amount": 500})
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "web-1", {"orders": ">"}, count=2)
    letter: Any = DeadLetter(("amount", "x"), "orders", "1-0", "billing", "web-1", 5, "error", "E: x", "T", 1, 1001)
    client.execute_command("XADD", "orders:dead", "5-0", *pack(letter))
    client.hset(schedule.content_key("mails"), "xmas-7", b"-:" + schedule.packed(["*", "to", "a@b.c"]))
    client.zadd(schedule.due_key("mails"), {"xmas-7": 10**12})
    table = timetable("nightly", "0 3 * * *", tz="Europe/Berlin")
    client.hset(KEY, "nightly", Recurring("nightly", table, "mails", (b"*", b"n", b"1")).to_json())
    words = shlex.split(line)
    assert words[0] == "millstream"
    done = CliRunner().invoke(main, words[1:], env={"MILLSTREAM_URL": server.url})
    critical = words[1] == "check" and done.exit_code in EXIT_CODES  # ids of 1970 are old
    assert done.exit_code == 0 or critical, done.output
    assert done.output


def test_exit_codes_are_those_of_the_code() -> None:
    """The page has the code's exit codes with their exact meanings."""
    plain = PAGE.replace("\\|", "|")
    assert all(f"| {code} | {meaning} |" in plain for code, meaning in EXIT_CODES.items())
    assert rows("| exit code | meaning |") == [str(code) for code in EXIT_CODES]


def test_options_that_several_nouns_have_are_on_the_page() -> None:
    """Every option of at least three nouns is on the page, and the page names no others."""
    nouns: dict[str, set[str]] = {}
    for name, command in every():
        for option in command.params:
            for word in option.opts if isinstance(option, click.Option) else ():
                nouns.setdefault(word, set()).add(name.split()[0])
    shown = {word for cell in rows("| option | meaning |") for word in re.findall(r"--[a-z-]+", cell)}
    assert shown <= set(nouns)
    kept = {word for word, where in nouns.items() if word.startswith("--") and len(where) >= 3}
    assert kept - shown == set()


def test_formats_and_changes_are_alike() -> None:
    """Each command with -o takes the common formats. Each with --yes also has a dry run."""
    assert all(f"-o {form}" in PAGE for form in FORMATS)
    for name, command in every():
        options = {word: option for option in command.params for word in option.opts}
        if (form := options.get("--format")) is not None and isinstance(form.type, click.Choice):
            assert {"table", "json", "jsonl"} <= set(form.type.choices), name


def test_completion_is_there_for_each_shell() -> None:
    """The page's completion lines print a script for each shell."""
    for shell in ("bash", "zsh", "fish"):
        assert f"_MILLSTREAM_COMPLETE={shell}_source millstream" in PAGE
        done = CliRunner().invoke(main, prog_name="millstream", env={"_MILLSTREAM_COMPLETE": f"{shell}_source"})
        assert (done.exit_code, "_MILLSTREAM_COMPLETE" in done.stdout) == (0, True), done.output
