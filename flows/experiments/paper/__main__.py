"""`python -m flows.experiments.paper`: see `command`."""

from __future__ import annotations

import sys

from flows.experiments.paper.command import main

if __name__ == "__main__":
    sys.exit(main())
