"""Printed command lines of pages and shell: a shell reads every name as a name."""

import shlex
from urllib.parse import quote

import click
import pytest
import redis

from millstream.cli.main import main
from millstream.ops.actions import form_of
from millstream.ops.watching.servers import ConsoleServer
from millstream.ops.words import command_words
from millstream.server.thread import ServerThread
from support.console import ConsoleThread

NAMES = ["-n", "--", "--to", "--url", "--all", "-o", "--consumer=x"]
SERVER = ConsoleServer("redis://127.0.0.1:7777")


def parsed(line: list[str]) -> tuple[list[str], dict[str, object]]:
    """Return the names and options of a command line as click parses them, without running it."""
    command: click.Command = main
    context = click.Context(main)
    words = line[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    context = command.make_context("x", words, resilient_parsing=True)
    names = [one.name for one in command.params if isinstance(one, click.Argument)]
    given = [context.params[name] for name in names]
    flat = [each for one in given for each in (one if isinstance(one, tuple) else (one,)) if one is not None]
    return flat, {name: value for name, value in context.params.items() if name not in names}


@pytest.mark.parametrize("stream", NAMES)
@pytest.mark.parametrize("group", ["billing", "--", "-n"])
def test_no_name_passes_for_an_option(stream: str, group: str) -> None:
    """A stream or group named like an option is read as a name, and --url as the option."""
    words = command_words("pending ack", stream, group, "1-0", options=("--consumer", "--", "--idle", "1h"))
    names, options = parsed(SERVER.command_line(*words[1:]))
    assert (names, options["consumer"], options["idle"]) == ([stream, group, "1-0"], "--", "1h")
    assert options["url"] == SERVER.url
    assert form_of(words) == {
        "do": "pending ack", "key": stream, "group": group, "ids": "1-0", "consumer": "--", "idle": "1h",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_page_names_what_the_page_is_about(data: ServerThread, client: redis.Redis, name: str) -> None:
    """Each page's command line names its stream, group, entry, letters or search, and each change its undo."""
    client.xadd(name, {"n": 1}, id="1-0")
    client.xadd(name, {"n": 2}, id="2-0")
    client.xgroup_create(name, name, id="0")
    client.xreadgroup(name, name, {name: ">"}, count=1)
    client.xadd(f"{name}:dead", {"n": 1}, id="1-0")
    key = quote(name, safe="")
    here = f"key={key}&group={key}"
    paths = {
        f"/stream?key={key}": [name], f"/group?{here}": [name, name], f"/entry?key={key}&id=1-0": [name, "1-0"],
        f"/dead?key={key}%3Adead": [f"{name}:dead"], f"/search?q={key}": [name],
        f"/change?do=group+rm&{here}": [name, name], f"/change?do=group+rewind&{here}&to=start": [name, name],
        f"/change?do=group+create&key={key}&group=g2&at=end": [name, "g2"],
        f"/change?do=consumer+rm&{here}&consumer={key}&claim_to=other": [name, name, name],
        f"/change?do=pending+ack&{here}&ids=1-0": [name, name, "1-0"],
        f"/change?do=pending+claim&{here}&consumer={key}&to={key}": [name, name],
        f"/change?do=pending+dead&{here}&ids=1-0": [name, name, "1-0"],
        f"/change?do=stream+trim&key={key}&maxlen=1": [name], f"/change?do=stream+rm&key={key}": [name],
        f"/change?do=stream+add&key={key}&fields=-x%3D1": [name, "-x=1"],
        f"/change?do=dead+rm&key={key}%3Adead&all=1": [f"{name}:dead"],
        f"/change?do=worker+pause&{here}&reason=why": [name, name],
    }  # fmt: skip
    with ConsoleThread(data.url, allow_changes=True) as console:
        for path, names in paths.items():
            page, _, rest = path.partition("?")
            facts = console.ask(f"{page}.json?{rest}").facts
            assert facts["shell"], path
            for line in facts["shell"]:
                found, options = parsed(shlex.split(line))
                assert (path, found[: len(names)], options["url"]) == (path, names, data.url)
