"""The state of an environment is taken after its turns, and not tried again where that is of no
use."""

from __future__ import annotations

from tasks.environments.processes.process_main import MAX_STATE_BYTES, States


class Counted:
    """Counts how often it is pickled; has so many bytes, or none that pickle."""

    def __init__(self, num_bytes: int | None = 0) -> None:
        self.num_bytes, self.num_pickled = num_bytes, 0

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self.num_pickled += 1
        if self.num_bytes is None:
            raise TypeError("it holds a socket")
        return bytes, (bytes(self.num_bytes),)


def kept(states: States, environment: Counted, *, num_turns: int) -> list[bool]:
    return [bool(states.after_turn(environment)) for _ in range(num_turns)]


def test_a_small_environment_is_pickled_after_every_turn() -> None:
    states, environment = States(are_kept=True), Counted()
    assert kept(states, environment, num_turns=3) == [True] * 3
    states.begin()
    assert kept(states, environment, num_turns=2) == [True] * 2


def test_one_that_is_too_large_or_does_not_pickle_is_tried_once() -> None:
    for environment in (Counted(MAX_STATE_BYTES), Counted(None)):
        states = States(are_kept=True)
        for _ in range(3):
            assert kept(states, environment, num_turns=4) == [False] * 4
            states.begin()
        assert environment.num_pickled == 1


def test_one_that_grows_too_large_is_tried_again_in_the_next_episode() -> None:
    states, environment = States(are_kept=True), Counted()
    assert kept(states, environment, num_turns=2) == [True] * 2
    environment.num_bytes = MAX_STATE_BYTES
    assert kept(states, environment, num_turns=5) == [False] * 5
    environment.num_bytes, environment.num_pickled = 0, 0
    assert kept(states, environment, num_turns=1) == [False]
    states.begin()
    assert kept(states, environment, num_turns=1) == [True]
    assert environment.num_pickled == 1


def test_one_that_was_restored_late_in_an_episode_is_not_given_up_for_good() -> None:
    states, environment = States(are_kept=True), Counted(MAX_STATE_BYTES)
    states.begin(is_first=False)
    assert kept(states, environment, num_turns=2) == [False] * 2
    states.begin()
    environment.num_bytes = 0
    assert kept(states, environment, num_turns=1) == [True]


def test_nothing_is_pickled_where_no_state_is_kept() -> None:
    states, environment = States(are_kept=False), Counted()
    states.begin()
    assert kept(states, environment, num_turns=2) == [False] * 2
    assert environment.num_pickled == 0
