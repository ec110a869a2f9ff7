"""``millstream demo``: describe the demo and its location."""

import click


@click.command()
def demo() -> None:
    """Describe the demo: a year of real flights through stream, workers and Spark, checked.

    The demo is an example in the source, examples/flights. In a clone, `make demo` installs what it needs and runs it;
    docs/demo.md describes it.
    """
    click.echo(
        "The demo is in the source, in examples/flights: clone it and run `make demo` there. "
        "docs/demo.md in the clone describes it."
    )
