"""Every code block of the Spark pages runs as printed, with the test's server and folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.realserver]


def test_every_block_of_the_pages(real_redis: ServerProcess, tmp_path: Path) -> None:
    """Every block of the pages runs. If the page names no URL, it comes from the environment."""
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
