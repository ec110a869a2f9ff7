"""An S3-compatible server for the tests that archive to one."""

from collections.abc import Iterator

import pytest

from support.objects import Door, make_bucket, object_server


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """The server, with one bucket."""
    with object_server(tmp_path_factory.mktemp("objects")) as door:
        make_bucket(door, "lake")
        yield door


@pytest.fixture
def door(objects: Door, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The way to it, as new; its address and credentials are in the environment."""
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    return objects.as_new()


@pytest.fixture
def place(door: Door, request: pytest.FixtureRequest) -> str:
    """A place of the test's own."""
    del door
    return f"s3://lake/{abs(hash(request.node.nodeid)):x}/a"
