"""Which replica gets a request: the one with the least to do. Pure; the same calls give the same
choices.

What a replica has to do is counted in tokens: every running response up to its bound, and with the
first response of a prompt its prefill, which costs a fraction of that. So the responses of a group
spread over replicas when decoding dominates, and stay together when a long prompt would have to be
computed twice for short answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.records import Request

PREFILL_COST = 1  # of a token; a unit, so that costs are whole numbers and come back to 0 exactly
DECODE_COST = 10  # of a token; measured ratios lie between ten and thirty

# weight of added work against balance; at 1 an idle replica wins even with a second prefill, and
# every group spreads
EXTRA_WORK = 2.0


class Router:
    """Running requests by replica."""

    def __init__(self, names: Sequence[str]) -> None:
        self._running: dict[str, dict[str, Request]] = {name: {} for name in names}
        self._costs: dict[str, dict[str, int]] = {name: {} for name in names}  # of what runs
        self._cost: dict[str, int] = dict.fromkeys(names, 0)  # their sums
        self._prompts: dict[str, set[str]] = {name: set() for name in names}
        self._retired: set[str] = set()

    @property
    def alive(self) -> tuple[str, ...]:
        """Replicas that are there, those included that take no more requests."""
        return tuple(self._running)

    @property
    def in_service(self) -> tuple[str, ...]:
        """Replicas that take requests."""
        return tuple(name for name in self._running if name not in self._retired)

    def retire(self, name: str) -> None:
        """Give a replica no more requests; what runs there goes on. It comes back only when no
        other is left."""
        self._retired.add(name)

    def assign(self, request: Request) -> str:
        """The replica for this request, which counts as running there from now on. ValueError when
        no replica is left."""
        if not self._running:
            raise ValueError(
                f"a request needs a replica, none is left for {request.response_id}; start one"
            )
        name = min(
            self.in_service,
            key=lambda replica: self._cost[replica] + EXTRA_WORK * self._added(replica, request),
        )
        self.adopt(name, request)
        return name

    def adopt(self, name: str, request: Request) -> None:
        """This replica has the request."""
        self._costs[name][request.response_id] = self._added(name, request)
        self._cost[name] += self._costs[name][request.response_id]
        self._prompts[name].add(request.prompt_id)
        self._running[name][request.response_id] = request

    def finish(self, response_id: str) -> None:
        """The response is over, however it ended."""
        for name, running in self._running.items():
            if running.pop(response_id, None) is not None:
                self._cost[name] -= self._costs[name].pop(response_id)

    def cost(self, name: str) -> int:
        """What this replica has to do, in prefilled tokens; 0 exactly when nothing runs there."""
        return self._cost[name]

    def where(self, response_id: str) -> str | None:
        """The replica that a response runs on, or None."""
        return next(
            (name for name, running in self._running.items() if response_id in running), None
        )

    def asked(self, name: str, response_id: str) -> Request | None:
        """What this replica was asked for a response that it has not answered, or None."""
        return self._running.get(name, {}).get(response_id)

    def num_running(self, name: str) -> int:
        """Requests that this replica has not answered."""
        return len(self._running.get(name, ()))

    def running(self) -> tuple[str, ...]:
        """Ids of all responses that some replica has not answered."""
        return tuple(name for running in self._running.values() for name in running)

    def requests(self, name: str) -> tuple[Request, ...]:
        """What this replica has not answered, in the order it got it."""
        return tuple(self._running.get(name, {}).values())

    def remove(self, name: str) -> tuple[Request, ...]:
        """Take a replica out; what it had not answered, in the order it got it."""
        self._cost.pop(name, None)
        self._costs.pop(name, None)
        self._prompts.pop(name, None)
        lost = tuple(self._running.pop(name, {}).values())
        if not self.in_service:
            self._retired.clear()
        return lost

    def _added(self, name: str, request: Request) -> int:
        """What the request would cost this replica; it keeps the prompts that it computed."""
        num_held = len(request.kept_tokens)  # given ones included: all of them are computed again
        is_cached = request.prompt_id in self._prompts[name]
        num_prefilled = num_held + (0 if is_cached else len(request.prompt_tokens))
        return DECODE_COST * (request.max_new_tokens - num_held) + PREFILL_COST * num_prefilled
