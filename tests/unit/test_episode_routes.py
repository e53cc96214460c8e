"""An episode has the routes of all its tokens: those that its last action's engine computed, and of
a history that was written anew those of before."""

from __future__ import annotations

import numpy as np
from record_factories import make_generated

from artifacts.records import Routes
from tasks.environments.episodes.episode import EpisodeSoFar, Opened

PROMPT, WIDTH = 3, 2


def acted(so_far: EpisodeSoFar, given: int, said: int, first: int, anew: bool) -> EpisodeSoFar:
    """A turn of so many given and sampled tokens; the routes of the tokens that its engine read are
    numbered from `first`."""
    opened = Opened(given=(1,) * given, observation="", asked_s=0.0, starts_over=anew)
    num_read = PROMPT + (0 if anew else len(so_far.path)) + given + said - 1
    numbers = np.arange(first, first + num_read, dtype=np.uint8).repeat(WIDTH)
    routes = Routes(width=WIDTH, num_bytes=1, data=numbers.tobytes())
    action = make_generated(token_ids=(2,) * said, routes=routes)
    opened_one = EpisodeSoFar(
        turns=so_far.turns, token_ids=so_far.token_ids, logprobs=so_far.logprobs,
        versions=so_far.versions, opened=opened, routes=so_far.routes,
    )  # fmt: skip
    return opened_one.sampled(action, 0.0)


def numbers(so_far: EpisodeSoFar) -> list[int]:
    assert so_far.routes is not None
    assert so_far.routes.width == WIDTH
    return list(so_far.routes.data[::WIDTH])


def test_the_last_action_has_read_all_before_it() -> None:
    first = acted(EpisodeSoFar(), 2, 4, 0, anew=False)
    second = acted(first, 1, 3, 100, anew=False)
    assert numbers(first) == [*range(PROMPT + 5)]
    assert numbers(second) == [*range(100, 100 + PROMPT + 9)]


def test_what_was_read_before_the_history_was_written_anew_keeps_its_routes() -> None:
    first = acted(EpisodeSoFar(), 2, 4, 0, anew=False)
    second = acted(first, 5, 3, 100, anew=True)
    third = acted(second, 1, 2, 200, anew=False)
    before = [*range(PROMPT + 5), 0]  # the first path's last token was never computed
    assert numbers(second) == [*before, *range(100 + PROMPT, 100 + PROMPT + 7)]
    assert numbers(third) == [*before, *range(200 + PROMPT, 200 + PROMPT + 10)]


def test_routes_of_a_path_that_nobody_knows_are_left_out() -> None:
    first = acted(EpisodeSoFar(), 2, 4, 0, anew=False)
    unknown = EpisodeSoFar(
        turns=first.turns, token_ids=first.token_ids, logprobs=first.logprobs,
        versions=first.versions,
    )  # fmt: skip
    assert acted(unknown, 5, 3, 100, anew=True).routes is None
    assert numbers(acted(unknown, 1, 3, 100, anew=False)) == [*range(100, 100 + PROMPT + 9)]
