"""Packages of Millstream's extras: advice for a missing one."""

from importlib.util import find_spec

from millstream.errors import UsageError

EXTRAS = {
    "lupa": "server",
    "uvloop": "server",
    "pydantic": "worker",
    "pydantic_core": "worker",
    "fast_depends": "worker",
    "opentelemetry": "otel",
    "prometheus_client": "metrics",
    "watchfiles": "reload",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "numpy": "spark",
    "fastavro": "avro",
    "deltalake": "lake",
    "obstore": "lake",
    "pyiceberg": "lake",
    "sqlalchemy": "outbox",
    "starlette": "console",
    "requests": "lake",
    "uvicorn": "console",
    "jinja2": "console",
    "markupsafe": "console",
}
"""Package as imported -> the extra that installs it."""


def advice(missing: ImportError, extra: str | None = None) -> UsageError | None:
    """Return an error that names the extra to install; None if the missing package belongs to none."""
    package = (missing.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return UsageError(f"needs {package}, which is not installed: pip install 'millstream[{extra or EXTRAS[package]}]'")


def check_extra(extra: str, what: str) -> None:
    """Check that the packages of an extra are installed, before work begins that needs them only at the end."""
    for package in (package for package, its in EXTRAS.items() if its == extra):
        if find_spec(package) is None:
            raise UsageError(f"{what} needs {package}, which is not installed: pip install 'millstream[{extra}]'")
