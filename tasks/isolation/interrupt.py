"""A flag by which one thread breaks off the wait of another.

    the pool's thread: interrupt.set() ─▶ the scoring thread, in poll: Interrupted ─▶ ends what ran

The waiting thread itself ends what it waits for: no other thread touches its processes and pipes.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Sequence


class Interrupted(Exception):
    """Raised by a wait whose result is not needed any more."""


class Interrupt:
    """A flag that a thread can wait on together with pipes and sockets, by its descriptor."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)

    def fileno(self) -> int:
        """Returns the descriptor, which is readable while the flag is set."""
        return self._descriptor

    def set(self) -> None:
        """Set the flag from another thread: every wait raises Interrupted until `clear`."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Clear the flag; does nothing if it is not set."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def wait(self, descriptor: int, limit_s: float) -> bool:
        """Wait for the descriptor; true if it is ready within limit_s. Raises as `wait_any`."""
        return bool(self.wait_any((descriptor,), limit_s))

    def wait_any(self, descriptors: Sequence[int], limit_s: float) -> list[int]:
        """Wait for any of the descriptors. Returns those with something to read, or hung up; empty
        after limit_s. Raises Interrupted when the flag is set."""
        poller = select.poll()
        for descriptor in (self._descriptor, *descriptors):
            poller.register(descriptor, select.POLLIN)
        ready = [found for found, _ in poller.poll(1000 * max(0.0, limit_s))]
        if self._descriptor in ready:
            raise Interrupted("nobody needs the verdict")
        return ready
