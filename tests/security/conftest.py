"""Certificates for the tests of this folder, created once."""

import pytest

from support.certificates import Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Create certificates of an authority, a server and clients."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
