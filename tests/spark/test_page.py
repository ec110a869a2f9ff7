"""Every block of code of the pages about Spark runs as it is printed: only the server and the folders are others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.realserver]


def test_every_block_of_the_pages(real_redis: ServerProcess, tmp_path: Path) -> None:
    """None is left out; the URL comes from the environment where the page names none."""
    environment = os.environ | {"MILLSTREAM_URL": real_redis.url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = Path(__file__).with_name("page_driver.py")
    ended = subprocess.run(
        [sys.executable, str(driver), real_redis.url, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
