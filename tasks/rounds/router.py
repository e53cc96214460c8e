"""Which replica gets a request: the one with the least to do. Pure; the same calls give the same
choices.

What a replica has to do is counted in tokens: every running response up to its bound, and with the
first response of a prompt its prefill, which costs a fraction of that. So the responses of a group
spread over replicas when decoding dominates, and stay together when a long prompt would have to be
computed twice for short answers. A replica may have a limit of requests, beyond which it is not
asked, and weights that are too old for some of them.

Added work is the same for all replicas but those that have computed the prompt before. So a choice
is between these few, those whose weights may lag behind and the one with the least to do of all
others, which a heap knows: it costs the logarithm of the number of replicas.
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
    """What one replica has to do."""

    place: int  # in the order in which they were added
    most_running: int | None  # requests at a time; None for any number
    version: int | None  # its weights; None where they are always the newest
    cost: int = 0  # of what runs, in prefilled tokens
    running: dict[str, tuple[Request, int]] = field(default_factory=dict)  # with what each costs

    @property
    def room(self) -> int | None:
        """Requests that it could take beside what it has; None for any number."""
        limit = self.most_running
        return None if limit is None else max(0, limit - len(self.running))


class Router:
    """Running requests by replica."""

    def __init__(self, names: Sequence[str], most_running: int | None = None) -> None:
        """most_running: requests that each of these takes at a time; None for any number."""
        self._replicas: dict[str, _Replica] = {}
        self._where: dict[str, str] = {}  # replicas, by the id of the response that each runs
        self._holders = defaultdict[str, set[str]](set)  # replicas that have computed a prompt
        self._dated: set[str] = set()  # replicas whose weights may lag behind
        # (cost, place, name) of every other replica that has room, and outdated entries
        self._least: list[tuple[int, int, str]] = []
        self._num_added = 0
        self._given: set[str] = set()  # those that got requests since `take_given`
        self._retired: set[str] = set()  # they come back when no other is left
        self._leaving: set[str] = set()  # they never come back
        for name in names:
            self.add(name, most_running)

    @property
    def alive(self) -> tuple[str, ...]:
        """Replicas that are there, those included that take no more requests."""
        return tuple(self._replicas)

    @property
    def in_service(self) -> tuple[str, ...]:
        """Replicas that take requests."""
        return tuple(filter(self.is_in_service, self._replicas))

    @property
    def leaving(self) -> tuple[str, ...]:
        """Replicas that will be gone soon."""
        if not self._leaving:
            return ()
        return tuple(name for name in self._replicas if name in self._leaving)

    @property
    def num_alive(self) -> int:
        """How many replicas are there."""
        return len(self._replicas)

    @property
    def num_in_all(self) -> int:
        """Requests that the replicas have not answered."""
        return len(self._where)

    def is_alive(self, name: str) -> bool:
        """Whether this replica is there."""
        return name in self._replicas

    def is_in_service(self, name: str) -> bool:
        """Whether this replica takes requests."""
        is_idle = name in self._retired or name in self._leaving
        return name in self._replicas and not is_idle

    def add(self, name: str, most_running: int | None = None, version: int | None = None) -> None:
        """There is one replica more; most_running: requests that it takes at a time. version: its
        weights, None where they are always the newest."""
        place = self._num_added
        self._replicas[name] = _Replica(place=place, most_running=most_running, version=version)
        self._num_added += 1
        if version is not None:
            self._dated.add(name)
        self._offer(name)

    def renew(self, name: str, version: int) -> None:
        """A replica has these weights by now."""
        replica = self._replicas[name]
        replica.version = max(version, replica.version or 0)

    def may_run(self, name: str, request: Request) -> bool:
        """Whether the weights of a replica are new enough for a request."""
        version = self._replicas[name].version
        return version is None or version >= request.oldest_version

    def retire(self, name: str) -> None:
        """Give a replica no more requests; what runs there goes on. It comes back only when no
        other is left."""
        self._retired.add(name)

    def leave(self, name: str) -> None:
        """Give a replica no more requests, whatever happens; what runs there goes on."""
        self._leaving.add(name)
        self._keep_one()

    def assign(self, request: Request, wanted: str = "") -> str | None:
        """The replica for this request, which counts as running there from now on: the wanted one
        if it can be had; None when none has room for it and weights that are new enough."""
        name = wanted if self._takes(wanted, request) else self._choose(request)
        if name is not None:
            self.adopt(name, request)
        return name

    def adopt(self, name: str, request: Request) -> None:
        """This replica has the request."""
        assert request.response_id not in self._where, "a response runs on one replica at a time"
        replica, cost = self._replicas[name], self._added(name, request)
        replica.running[request.response_id] = request, cost
        replica.cost += cost
        self._where[request.response_id] = name
        self._holders[request.prompt_id].add(name)
        self._given.add(name)
        self._offer(name)

    def finish(self, response_id: str) -> None:
        """The response is over, however it ended."""
        name = self._where.pop(response_id, None)
        if name is not None:
            replica = self._replicas[name]
            replica.cost -= replica.running.pop(response_id)[1]
            self._offer(name)

    def take_given(self) -> set[str]:
        """Replicas that got requests since the last call."""
        given, self._given = self._given, set()
        return given

    def place(self, name: str) -> int:
        """Where this replica stands in the order in which they were added."""
        return self._replicas[name].place

    def cost(self, name: str) -> int:
        """What this replica has to do, in prefilled tokens; 0 exactly when nothing runs there."""
        return self._replicas[name].cost

    def room(self, name: str) -> int | None:
        """Requests that a replica could take beside what it has; None for any number."""
        return self._replicas[name].room if name in self._replicas else None

    def where(self, response_id: str) -> str | None:
        """The replica that a response runs on, or None."""
        return self._where.get(response_id)

    def asked(self, name: str, response_id: str) -> Request | None:
        """What this replica was asked for a response that it has not answered, or None."""
        is_there = self._where.get(response_id) == name
        return self._replicas[name].running[response_id][0] if is_there else None

    def num_running(self, name: str) -> int:
        """Requests that this replica has not answered."""
        return len(self._replicas[name].running) if name in self._replicas else 0

    def running(self) -> tuple[str, ...]:
        """Ids of all responses that some replica has not answered."""
        return tuple(name for replica in self._replicas.values() for name in replica.running)

    def requests(self, name: str) -> tuple[Request, ...]:
        """What this replica has not answered, in the order it got it."""
        running = self._replicas[name].running if name in self._replicas else {}
        return tuple(request for request, _ in running.values())

    def remove(self, name: str) -> tuple[Request, ...]:
        """Take a replica out; what it had not answered, in the order it got it."""
        lost = self.requests(name)
        for request in lost:
            del self._where[request.response_id]
        self._replicas.pop(name, None)
        self._keep_one()
        return lost

    def _keep_one(self) -> None:
        """Where no replica would take requests, the retired ones do."""
        if self._retired and not any(map(self.is_in_service, self._replicas)):
            self._retired.clear()
            for name in self._replicas:
                self._offer(name)

    def _offer(self, name: str) -> None:
        """Note what this replica has to do now."""
        if name not in self._dated:
            replica = self._replicas[name]
            heappush(self._least, (replica.cost, replica.place, name))

    def _choose(self, request: Request) -> str | None:
        """Of the replicas that can take it the one with the least to do, added work counted; the
        first of those that are alike. None if there is none."""
        single = self._holders[request.prompt_id] | self._dated
        able = {name for name in single if self._takes(name, request)} | self._with_least()
        return min(able, key=lambda name: self._burden(name, request), default=None)

    def _with_least(self) -> set[str]:
        """The replica with room that has the least to do now, those that may lag behind left out;
        nothing if none has room."""
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
        return replica.cost + EXTRA_WORK * self._added(name, request), replica.place

    def _added(self, name: str, request: Request) -> int:
        """What the request would cost this replica; it keeps the prompts that it computed."""
        num_held = len(request.kept_tokens)  # given ones included: all of them are computed again
        is_cached = name in self._holders[request.prompt_id]
        num_prefilled = num_held + (0 if is_cached else len(request.prompt_tokens))
        return DECODE_COST * (request.max_new_tokens - num_held) + PREFILL_COST * num_prefilled
