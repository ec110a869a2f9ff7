"""The end of a run on the terminal: the table of checks, and the paths of the results."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flights.checks.result import Result

NARROWEST = 120
"""Width of the table if there is no terminal."""


def show(result: Result, page: Path, console: Console) -> None:
    """Print the table of checks, and the paths of the results."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, NARROWEST))
    table = Table(
        box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="bold", title=_title(result)
    )
    table.add_column("part", style="dim", no_wrap=True)
    table.add_column("what must hold", min_width=40)
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("", no_wrap=True)
    part = ""
    for check in result.checks:
        sign = "[green]holds[/green]" if check.ok else "[bold red]FAILS[/bold red]"
        name = check.part if check.part != part else ""
        part = check.part
        table.add_row(name, escape(check.what), escape(check.expected), escape(check.found), sign)
    console.print()
    console.print(table)
    console.print()
    failed = [check for check in result.checks if not check.ok]
    seconds = sum(result.seconds.values())
    if failed:
        console.print(f"[bold red]{len(failed)} of {len(result.checks)} checks fail[/bold red] ({seconds:.0f} s).")
    else:
        console.print(f"[green]All {len(result.checks)} checks hold[/green] ({seconds:.0f} s).")
    console.print(f"Page with plots: {page}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"Logs: {result.settings.logs}", markup=False, highlight=False, soft_wrap=True)


def _title(result: Result) -> str:
    return f"{result.rows:,} flights on {escape(result.server)}"
