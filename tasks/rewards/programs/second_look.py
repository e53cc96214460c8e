"""Second looks: some programs that were killed early are executed once more, with what the machine
has to spare.

    decided round ─▶ its early killed programs
    ─▶ one thread, a sandbox of the lowest priority ─▶ anchors for the rounds to come

No verdict waits for a look. A look takes no reward worker, and only the processor time that nothing
else wants; on a machine that has none to spare, a slow correct program does not finish, and its
limit stays what it was. `adaptive_timeout` says what to look at.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from artifacts.records import Generated, Prompt, Score
from tasks.rewards.programs.adaptive_timeout import (
    Anchor,
    MeasuredTimes,
    merged,
    observed,
    second_looks,
)
from tasks.rewards.programs.code_tests import CodeTests, CodeTestsConfig

LOWEST_PRIORITY = 19  # as `nice` counts


class SecondLooks:
    """Executes programs of one configuration again, one after the other; ends with its run."""

    def __init__(self, config: CodeTestsConfig, book: MeasuredTimes, most: int) -> None:
        """At most `most` programs wait or run at a time; more are not looked at. ValueError if the
        machine has no such isolation."""
        self.config = config
        self._book = book
        self._most = most
        self._looks: list[Future[Score]] = []
        self._relearned: dict[str, Anchor] = {}
        self._reward = CodeTests(config, book, niceness=LOWEST_PRIORITY)
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reward-look")

    def look_again(self, scored: Sequence[tuple[Prompt, Generated, Score]]) -> list[Future[Score]]:
        """Have some of a round's early killed programs executed with the longest limits; see
        `relearned`."""
        with self._lock:
            self._looks = [look for look in self._looks if not look.done()]
            room = self._most - len(self._looks)
            places = second_looks(
                self.config.timeout,
                self._book.anchors,
                [score.cases for _, _, score in scored],
                room,
            )
            looks = [
                self._thread.submit(self._look, prompt, generated)
                for prompt, generated, _ in (scored[place] for place in places)
            ]
            self._looks += looks
        return looks

    def relearned(self) -> Mapping[str, Anchor]:
        """What looks have told since this was last called; the book knows it already."""
        with self._lock:
            told, self._relearned = self._relearned, {}
        return told

    def close(self) -> None:
        """Give up what waits and what runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._reward.interrupt.set()
        self._thread.shutdown(wait=True)
        self._reward.close()

    def _look(self, prompt: Prompt, generated: Generated) -> Score:
        score = self._reward.look_again(prompt, generated)
        told = observed(self.config.timeout, [score.cases])
        self._book.learn(told)
        with self._lock:
            self._relearned = merged(self._relearned, told)
        return score
