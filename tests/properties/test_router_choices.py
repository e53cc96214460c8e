"""The router's heap gives every request to the replica that a look at all replicas would choose."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from record_factories import make_request

from artifacts.records import Request
from tasks.rounds.router import DECODE_COST, EXTRA_WORK, Router

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["assign"] * 6 + ["finish"] * 3 + ["retire", "leave", "remove", "add"]),
        st.integers(0, 7),
        st.integers(0, 400),
    ),
    max_size=80,
)


class NaiveRouter:
    """Looks at every replica for every request."""

    def __init__(self) -> None:
        self.running: dict[str, dict[str, int]] = {}  # costs, by replica and response id
        self.limits: dict[str, int | None] = {}
        self.prompts: dict[str, set[str]] = {}
        self.retired: set[str] = set()
        self.leaving: set[str] = set()

    def add(self, name: str, max_running: int | None) -> None:
        self.running[name], self.prompts[name] = {}, set()
        self.limits[name] = max_running

    def keep_one(self) -> None:
        if not (self.running.keys() - self.retired - self.leaving):
            self.retired.clear()

    def added(self, name: str, request: Request) -> int:
        new = 0 if request.prompt_id in self.prompts[name] else len(request.prompt_tokens)
        return DECODE_COST * request.max_new_tokens + new

    def assign(self, request: Request) -> str | None:
        with_room = [
            name
            for name, running in self.running.items()
            if name not in self.retired | self.leaving and self.limits[name] != len(running)
        ]
        if not with_room:
            return None
        name = min(
            with_room,
            key=lambda name: (
                sum(self.running[name].values()) + EXTRA_WORK * self.added(name, request)
            ),
        )
        self.running[name][request.response_id] = self.added(name, request)
        self.prompts[name].add(request.prompt_id)
        return name

    def finish(self, response_id: str) -> None:
        for running in self.running.values():
            running.pop(response_id, None)


@given(actions=ACTIONS, limits=st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=4))
def test_a_heap_chooses_as_a_look_at_all_replicas(
    actions: list[tuple[str, int, int]], limits: list[int | None]
) -> None:
    router, naive = Router([]), NaiveRouter()
    sent: list[str] = []
    num_added = 0

    def add(max_running: int | None) -> None:
        nonlocal num_added
        router.add(f"engine-{num_added}", max_running)
        naive.add(f"engine-{num_added}", max_running)
        num_added += 1

    for limit in limits:
        add(limit)
    for place, (action, which, size) in enumerate(actions):
        name = f"engine-{which % num_added}"
        match action:
            case "assign":
                request = make_request(
                    prompt_id=f"p{which}",
                    index=place,
                    prompt_tokens=(1,) * (17 * which),
                    max_new_tokens=size + 1,
                )
                sent.append(request.response_id)
                assert router.assign(request) == naive.assign(request)
            case "finish" if sent:
                over = sent.pop(size % len(sent))
                router.finish(over)
                naive.finish(over)
            case "add":
                add(limits[which % len(limits)])
            case "retire":
                router.retire(name)
                naive.retired.add(name)
            case "leave":
                router.leave(name)
                naive.leaving.add(name)
                naive.keep_one()
            case "remove":
                lost = [request.response_id for request in router.remove(name)]
                assert lost == [*naive.running.pop(name, {})]
                naive.keep_one()
    assert router.running() == tuple(name for running in naive.running.values() for name in running)
