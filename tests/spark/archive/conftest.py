"""An S3-compatible server for the archive tests."""

from collections.abc import Iterator

import pytest

from support.objects import Door, make_bucket, object_server


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """Start an S3-compatible server with one bucket."""
    with object_server(tmp_path_factory.mktemp("objects")) as door:
        make_bucket(door, "lake")
        yield door


@pytest.fixture
def door(objects: Door, monkeypatch: pytest.MonkeyPatch) -> Door:
    """Reset the S3-compatible server and put its address and credentials into the environment."""
    for name, value in objects.environment.items():
        monkeypatch.setenv(name, value)
    return objects.as_new()


@pytest.fixture
def place(door: Door, request: pytest.FixtureRequest) -> str:
    """Return an archive URL in the bucket that only this test uses."""
    del door
    return f"s3://lake/{abs(hash(request.node.nodeid)):x}/a"
