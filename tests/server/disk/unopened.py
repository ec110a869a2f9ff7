"""Start a server on a file system without any space, and one whose data is there already.

Argument: the mount point of a small file system.
"""

import subprocess
import sys
from pathlib import Path

from support.servers import millstream_server


def main() -> None:
    """Check that both end with one sentence, and start once there is space."""
    home = Path(sys.argv[1])
    folder = home.parent / "server"
    server = millstream_server(folder)
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    with (home / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(512))
        except OSError:
            pass
    done = subprocess.run(server.command, capture_output=True, text=True, check=False, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1, done
    assert last.startswith(f"millstream: cannot open the data directory {home / 'data'}: No space left on device"), last
    assert "free some space" in last, last
    (home / "ballast").unlink()
    with server.start().client() as client:
        client.set("key", "value")
    server.kill()
    with server.start().client() as client:
        assert client.get("key") == b"value"
    server.stop()


if __name__ == "__main__":
    main()
