"""Databases with an outbox table."""

from collections.abc import Iterator

import pytest
import sqlalchemy

from millstream import outbox
from support.databases import NAMES, Database, database


# Servers of databases take a minute to make their directories: the first tier has SQLite alone
@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.full] if name != "sqlite" else []) for name in NAMES]
)
def base(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The databases, one after the other."""
    with database(request.param) as made:
        yield made


@pytest.fixture
def engine(base: Database) -> Iterator[sqlalchemy.Engine]:
    """An engine for a database with an empty outbox."""
    made = base.engine()
    outbox.create(made)
    with made.begin() as connection:
        connection.execute(sqlalchemy.delete(outbox.table))
    yield made
    made.dispose()
