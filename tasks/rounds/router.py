"""The router: each request goes to the replica with the least to do. Pure; the same calls give the
same choices.

The work of a replica is counted in tokens: every running response up to its bound, and with the
first response of a prompt its prefill, which costs a fraction of that. So the responses of a group
spread over replicas when decoding dominates, and stay together when a long prompt would have to be
computed twice for short answers. A request adds the same work to every replica, except to those
that have computed its prompt before: only these few are compared, those whose weights may lag
behind, and the one of all others with the least to do, which a heap finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from artifacts.records import Request

PREFILL_COST = 1  # of a token; a unit, so that costs are whole numbers and come back to 0 exactly
DECODE_COST = 10  # of a token; measured ratios lie between ten and thirty

# weight of added work against balance; at 1 an idle replica wins even with a second prefill, and
# every group spreads
EXTRA_WORK = 2.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Replica:
    """The work of one replica."""

    order: int  # its rank in the order in which replicas were added
    max_running: int | None  # requests at a time; None for any number
    version: int | None  # its weights; None where they are always the newest
    cost: int = 0  # of its running requests, in prefilled tokens
    running: dict[str, tuple[Request, int]] = field(default_factory=dict)  # with costs

    @property
    def room(self) -> int | None:
        """Requests that it could take beside its own; None for any number."""
        limit = self.max_running
        return None if limit is None else max(0, limit - len(self.running))


class Router:
    """Assigns requests to replicas, and knows which requests run on each."""

    def __init__(self, names: Sequence[str], max_running: int | None = None) -> None:
        """max_running: requests that each of these replicas takes at a time; None for any
        number."""
        self._replicas: dict[str, _Replica] = {}
        self._where: dict[str, str] = {}  # replicas, by the id of the response that each runs
        self._holders = defaultdict[str, set[str]](set)  # replicas that have computed a prompt
        self._dated: set[str] = set()  # replicas whose weights may lag behind
        # (cost, order, name) of every other replica that has room, and outdated entries
        self._least: list[tuple[int, int, str]] = []
        self._num_added = 0
        self._given: set[str] = set()  # replicas that got requests since `take_given`
        self._retired: set[str] = set()  # retired replicas; they come back when no other is left
        self._leaving: set[str] = set()  # replicas that are leaving; they never come back
        for name in names:
            self.add(name, max_running)

    @property
    def alive(self) -> tuple[str, ...]:
        """Names of the replicas that are present, including those that take no more requests."""
        return tuple(self._replicas)

    @property
    def in_service(self) -> tuple[str, ...]:
        """Names of the replicas that take requests."""
        return tuple(filter(self.is_in_service, self._replicas))

    @property
    def leaving(self) -> tuple[str, ...]:
        """Names of the replicas that will be gone soon."""
        return tuple(name for name in self._replicas if name in self._leaving)

    @property
    def num_in_all(self) -> int:
        """Number of requests, over all replicas, that are not answered."""
        return len(self._where)

    def is_alive(self, name: str) -> bool:
        """True if this replica is present."""
        return name in self._replicas

    def is_in_service(self, name: str) -> bool:
        """True if this replica takes requests."""
        is_idle = name in self._retired or name in self._leaving
        return name in self._replicas and not is_idle

    def add(self, name: str, max_running: int | None = None, version: int | None = None) -> None:
        """Add a replica. max_running: requests that it takes at a time; version: its weights, None
        where they are always the newest."""
        self._replicas[name] = _Replica(
            order=self._num_added, max_running=max_running, version=version
        )
        self._num_added += 1
        if version is not None:
            self._dated.add(name)
        self._offer(name)

    def renew(self, name: str, version: int) -> None:
        """Note the newer weights of a replica."""
        replica = self._replicas[name]
        replica.version = max(version, replica.version or 0)

    def may_run(self, name: str, request: Request) -> bool:
        """True if the weights of a replica are new enough for a request."""
        version = self._replicas[name].version
        return version is None or version >= request.oldest_version

    def retire(self, name: str) -> None:
        """Assign a replica no more requests, unless no other is left; running ones go on."""
        self._retired.add(name)

    def leave(self, name: str) -> None:
        """Assign a replica no more requests, because it will be gone soon; running ones go on."""
        self._leaving.add(name)
        self._keep_one()

    def assign(self, request: Request, wanted: str = "") -> str | None:
        """Choose a replica for this request, which counts as running there from now on. Takes the
        `wanted` replica if that can run the request; returns None if no replica has room and new
        enough weights."""
        name = wanted if self._takes(wanted, request) else self._choose(request)
        if name is not None:
            self.adopt(name, request)
        return name

    def adopt(self, name: str, request: Request) -> None:
        """Count the request as running on this replica."""
        assert request.response_id not in self._where, "a response runs on one replica at a time"
        replica, cost = self._replicas[name], self._added(name, request)
        replica.running[request.response_id] = request, cost
        replica.cost += cost
        self._where[request.response_id] = name
        self._holders[request.prompt_id].add(name)
        self._given.add(name)
        self._offer(name)

    def finish(self, response_id: str) -> None:
        """Forget a response that is over, however it ended."""
        name = self._where.pop(response_id, None)
        if name is not None:
            replica = self._replicas[name]
            replica.cost -= replica.running.pop(response_id)[1]
            self._offer(name)

    def take_given(self) -> set[str]:
        """Return the names of the replicas that got requests since the last call."""
        given, self._given = self._given, set()
        return given

    def order_of(self, name: str) -> int:
        """The rank of this replica in the order in which replicas were added."""
        return self._replicas[name].order

    def cost(self, name: str) -> int:
        """The work of this replica in prefilled tokens; exactly 0 when nothing runs there."""
        return self._replicas[name].cost

    def room(self, name: str) -> int | None:
        """Further requests that a replica can take; None for any number, or if it is gone."""
        return self._replicas[name].room if name in self._replicas else None

    def where(self, response_id: str) -> str | None:
        """The name of the replica that a response runs on; None if it runs on none."""
        return self._where.get(response_id)

    def requested(self, name: str, response_id: str) -> Request | None:
        """The request of a response that runs on this replica; None if it does not run there."""
        is_there = self._where.get(response_id) == name
        return self._replicas[name].running[response_id][0] if is_there else None

    def num_running(self, name: str) -> int:
        """Number of requests that this replica has not answered."""
        return len(self._replicas[name].running) if name in self._replicas else 0

    def running(self) -> tuple[str, ...]:
        """Ids of all responses that some replica has not answered."""
        return tuple(name for replica in self._replicas.values() for name in replica.running)

    def requests(self, name: str) -> tuple[Request, ...]:
        """Requests that this replica has not answered, in the order of their arrival."""
        running = self._replicas[name].running if name in self._replicas else {}
        return tuple(request for request, _ in running.values())

    def remove(self, name: str) -> tuple[Request, ...]:
        """Remove a replica; returns the requests that it had not answered, in order of arrival."""
        lost = self.requests(name)
        for request in lost:
            del self._where[request.response_id]
        self._replicas.pop(name, None)
        self._keep_one()
        return lost

    def _keep_one(self) -> None:
        """Bring the retired replicas back if no other takes requests."""
        if self._retired and not any(map(self.is_in_service, self._replicas)):
            self._retired.clear()
            for name in self._replicas:
                self._offer(name)

    def _offer(self, name: str) -> None:
        """Put the present work of this replica on the heap."""
        if name not in self._dated:
            replica = self._replicas[name]
            heappush(self._least, (replica.cost, replica.order, name))

    def _choose(self, request: Request) -> str | None:
        """The replica with the least to do, added work counted, of those that can take the request;
        the first of equals. None if there is none."""
        single = self._holders[request.prompt_id] | self._dated
        able = {name for name in single if self._takes(name, request)} | self._with_least()
        return min(able, key=lambda name: self._burden(name, request), default=None)

    def _with_least(self) -> set[str]:
        """The replica with room that has the least to do now, without those whose weights may lag
        behind; empty if none has room."""
        while self._least:
            cost, _, name = self._least[0]
            if self._has_room(name) and self._replicas[name].cost == cost:
                return {name}
            heappop(self._least)  # outdated, or comes back with the room
        return set()

    def _takes(self, name: str, request: Request) -> bool:
        return self._has_room(name) and self.may_run(name, request)

    def _has_room(self, name: str) -> bool:
        return self.is_in_service(name) and self._replicas[name].room != 0

    def _burden(self, name: str, request: Request) -> tuple[float, int]:
        replica = self._replicas[name]
        return replica.cost + EXTRA_WORK * self._added(name, request), replica.order

    def _added(self, name: str, request: Request) -> int:
        """The work that a request adds to this replica, which keeps the prompts it computed."""
        num_held = len(request.kept_tokens)  # given ones included: all of them are computed again
        is_cached = name in self._holders[request.prompt_id]
        num_prefilled = num_held + (0 if is_cached else len(request.prompt_tokens))
        return DECODE_COST * (request.max_new_tokens - num_held) + PREFILL_COST * num_prefilled
