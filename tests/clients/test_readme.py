"""The README's worker works as printed."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

from support.readme import block
from support.servers import ServerProcess
from support.waiting import eventually


def test_worker_of_the_readme(our_server: ServerProcess, tmp_path: Path) -> None:
    """The README's worker creates its group, handles and acknowledges its entry, and SIGTERM ends it with code 0."""
    (tmp_path / "shop.py").write_text(block("python", "@app.subscriber"))
    words = shlex.split(block("sh", "millstream run"))
    words[0] = str(Path(sys.executable).with_name("millstream"))
    words[words.index("--url") + 1] = our_server.url
    log = tmp_path / "run.out"
    with log.open("wb") as out, our_server.client() as client:
        running = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT)
        try:
            client.xadd("orders", {"item": "tea"})

            def settled() -> bool:
                (group,) = client.xinfo_groups("orders")
                return (group["entries-read"], group["pending"], group["lag"]) == (1, 0, 0)

            eventually(lambda: client.xinfo_groups("orders"), what="the workers make their group")
            eventually(settled, what="the entry is acknowledged")
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=30) == 0, log.read_text()
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()
    assert "billing tea" in log.read_text()
