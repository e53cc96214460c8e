"""`python -m research.paper`: see `command`."""

from __future__ import annotations

import sys

from research.paper.command import main

if __name__ == "__main__":
    sys.exit(main())
