"""What an elastic worker is started with where nothing else is said. Imports nothing, so that the
help of a command is there at once."""

from __future__ import annotations

from typing import Final

PRICE_CLASS: Final = "spot"
DRAIN_S: Final = 30.0  # a cloud's shortest notice, and what Kubernetes gives a pod
LEASE_S: Final = 20.0
GRACE_S: Final = 60.0
