"""``millstream serve`` with the clock a second after a fixture's recording began, so that nothing has expired yet."""

import sys

from compatibility.content import BEGIN_MS
from millstream.cli.main import main
from millstream.server import app
from support.clock import Ahead

vars(app)["SystemClock"] = lambda: Ahead(BEGIN_MS + 1000)

if __name__ == "__main__":
    sys.argv[0] = "millstream"
    main()
