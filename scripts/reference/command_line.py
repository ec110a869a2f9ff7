"""The reference of the command line: every command with its options, defaults, environment variables and exit codes."""

import inspect
import re
import textwrap
from collections.abc import Iterator

import click
from scripts.reference.markdown import code, prose, table

from millstream.cli.main import main
from millstream.cli.shared.output import EXIT_CODES
from millstream.ops.every import ACTIONS

#: A default that click lacks, as the help shows it.
_DEFAULT = re.compile(r" *\[default: (.*?)\]")


def commands(found: click.Command = main, name: str = "millstream") -> Iterator[tuple[str, click.Command]]:
    """Yield every command below one, including itself, in the order of the help."""
    yield name, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for word in found.list_commands(context):
            inner = found.get_command(context, word)
            assert inner is not None
            yield from commands(inner, f"{name} {word}")


def reference() -> str:
    """Return a section for each command; the commands of a group below it."""
    return "\n" + "\n".join(section(name, command) for name, command in commands() if name != "millstream") + "\n"


def section(name: str, command: click.Command) -> str:
    """Return the section of one command: its usage, its help, its options."""
    context = click.Context(command, info_name=name, show_default=True)
    parts = [f"{'#' * len(name.split())} {name}\n", f"```\n{usage(name, command, context)}\n```\n"]
    parts += [help_text(command.help or "")]
    if isinstance(command, click.Group):
        parts.append(
            table(["command", "meaning"], [(code(f"{name} {word}"), line) for word, line in lines(command, context)])
        )
    if options := [each for each in command.params if isinstance(each, click.Option) and not each.hidden]:
        parts.append(table(["option", "default", "meaning"], [row(option, context) for option in options]))
    if command.epilog:
        parts.append(help_text(command.epilog))
    return "\n".join(part for part in parts if part)


def usage(name: str, command: click.Command, context: click.Context) -> str:
    """Return the usage line of the help."""
    return " ".join([name, *command.collect_usage_pieces(context)])


def lines(group: click.Group, context: click.Context) -> list[tuple[str, str]]:
    """Return the commands of a group with a line each."""
    found = []
    for word in group.list_commands(context):
        inner = group.get_command(context, word)
        assert inner is not None
        found.append((word, prose(inner.get_short_help_str(limit=120))))
    return found


def row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    """Return an option's row: its names with the value, its default, its text with its environment variable.

    Raises:
        ValueError: It has no help.
    """
    if not option.help:
        raise ValueError(f"{context.info_name}: {option.opts[-1]} has no help")
    extra = option.get_help_extra(context)
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(context).removesuffix(' RANGE')}"
    in_words = _DEFAULT.search(option.help)
    remarks = [prose(_DEFAULT.sub("", option.help))]
    if option.multiple:
        remarks.append("May be given more than once.")
    if option.required:
        remarks.append("Required.")
    if "range" in extra:
        remarks.append(f"Range: {code(extra['range'])}.")
    if option.envvar:
        names = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        remarks.append(f"Environment: {', '.join(map(code, names))}.")
    words = [*option.opts, *option.secondary_opts]
    return (
        code(", ".join(sorted(words, key=lambda word: word.startswith("--"))) + takes),
        code(default(extra) or (in_words[1] if in_words else "")),
        " ".join(remarks),
    )


def default(extra: object) -> str:
    """Return the default that the help shows; empty if the help has it in words or there is none."""
    return str(extra["default"]) if isinstance(extra, dict) and "default" in extra else ""


def help_text(text: str) -> str:
    """Return Click's help as Markdown: paragraphs with a fixed layout become blocks of code."""
    parts, kept = [], "\b\n"
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith(kept):
            parts.append(prose(paragraph) + "\n")
            continue
        block = paragraph.removeprefix(kept).replace(kept, "\n")
        first, _, rest = block.partition("\n")
        if first.endswith(":") and not first.startswith(" "):
            parts.append(first + "\n")
            block = rest
        parts.append(f"```\n{textwrap.dedent(block).rstrip()}\n```\n")
    return "\n".join(parts)


def exit_codes() -> str:
    """Return the table of the common exit codes."""
    return (
        "\n"
        + table(["exit code", "what happened"], [(str(number), meaning) for number, meaning in EXIT_CODES.items()])
        + "\n"
    )


def actions() -> str:
    """Return the table of all declared actions."""
    rows = [(code(one.line), one.says, code(one.undo)) for one in ACTIONS]
    return "\n" + table(("action", "effect", "undone by"), rows) + "\n"
