"""The transport `broadcast`: rank 0 of the learner sends its weights to the workers of all engines,
bucket by bucket, in layer order; NCCL between GPUs, gloo between CPUs.

    meeting   every member ── "here", and which group it has ──▶ store of rank 0
              rank 0 ── waits for all members ──▶ "go", with the number of the group
    group     made anew when a member has another one: a process group of its own, nobody else's
    buckets   rank 0 sends views of its buffer; members receive into two buffers in turn

    end       all ranks meet in a collective: sent is not yet received

Every wait ends with the deadline, or once rank 0 has ended the transfer. Members that do not come
are named by rank 0, in its error and in those of the members that came; when a collective fails,
those that do not answer are. A group that has failed is never used again. Collectives are polled,
not waited for: NCCL would wait for ever.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    Backend,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
    Work,
)

from tasks.engines.base import TransferLost
from tasks.engines.transports.base import (
    BUCKET_ELEMENTS,
    FlatWeights,
    OfferedWeights,
    ParameterSlot,
    WeightStream,
    buckets_of,
)

POLL_S = 0.001  # between two looks at a collective or at who has come
ANSWER_S = 2.0  # after a failed collective, for members to answer that they live
LOOK_S = 0.1  # between two looks at whether rank 0 has ended the transfer
GO, REFUSED = "go", "!"  # the key by which rank 0 begins; begins its value where it does not
ENDED = "ended"  # the key by which rank 0 ends a transfer that failed


class BroadcastTransport:
    """Both sides of `broadcast`: a process has either."""

    def __init__(
        self, host: str, deadline_s: float, bucket_elements: int = BUCKET_ELEMENTS
    ) -> None:
        """host: address of this machine at which members reach the learner."""
        self._host, self._deadline_s, self._bucket_elements = host, deadline_s, bucket_elements
        self._store: Store | None = None  # the server here, on the learner; its client, on members
        self._address = ("", 0)
        self._group: Backend | None = None
        self._group_number = ""  # of the group that this process is in; empty without one
        self._members: tuple[str, ...] = ()
        self._number = 0  # of offers, or on the learner of groups as well
        self._offered: FlatWeights | None = None  # on the learner; None ends a transfer
        self._meeting: Store | None = None  # on members, in a transfer

    # --- the learner's side

    def offer(
        self, weights: FlatWeights, version: int, path: str, members: Sequence[str]
    ) -> OfferedWeights:
        if self._store is None:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listening = socket.create_server((self._host, 0), family=family)
            self._address = (self._host, listening.getsockname()[1])
            self._store = TCPStore(
                *self._address,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=self._deadline_s),
                master_listen_fd=listening.detach(),
            )
        self._number += 1
        self._offered, self._members = weights, tuple(members)
        return OfferedWeights(
            version=version,
            path=path,
            digest="",
            kind="broadcast",
            slots=tuple(weights.slots),
            sources={
                "address": self._address,
                "meeting": str(self._number),
                "members": self._members,
                "bucket_elements": self._bucket_elements,
            },
            deadline_s=self._deadline_s,
        )

    def send(self) -> None:
        if self._offered is None or self._store is None:
            raise TransferLost("the weights were withdrawn before they were sent")
        ends = time.monotonic() + self._deadline_s
        values, slots = self._offered.values, self._offered.slots
        meeting = PrefixStore(str(self._number), self._store)
        missing = _missing(meeting, self._members, ends, lambda: self._offered is None)
        if missing:
            self._leave()
            waited_s = time.monotonic() - ends + self._deadline_s
            reason = f"{', '.join(missing)} did not come for the weights within {waited_s:.0f} s"
            reason = f"{reason}; {len(missing)} of {len(self._members)}"
            meeting.set(GO, f"{REFUSED}{reason}")
            raise TransferLost(reason)
        held = {meeting.get(member).decode() for member in self._members}
        number = self._group_number
        if held != {number} or not number:
            number = f"group-{self._number}"
        meeting.set(GO, number)
        try:
            self._enter(number, 0, values.device)
            for bucket in buckets_of(slots, self._bucket_elements):
                self._finish(self._broadcast(values[bucket[0].start : bucket[-1].end]), ends)
            self._end(values.device, ends)
        except (RuntimeError, TimeoutError) as error:
            self._leave()
            meeting.set(ENDED, "")
            alive = time.monotonic() + ANSWER_S
            silent = _missing(meeting, [_answer(member) for member in self._members], alive)
            names = ", ".join(name.partition(" ")[0] for name in silent) or "none of them"
            raise TransferLost(
                f"the weights did not reach all of {', '.join(self._members)}; gone or late:"
                f" {names} ({_first_line(error)})"
            ) from error

    def withdraw(self) -> None:
        self._offered = None

    # --- the engines' side

    @contextmanager
    def open(
        self, offered: OfferedWeights, device: torch.device, member: str
    ) -> Iterator[WeightStream]:
        ends = time.monotonic() + offered.deadline_s
        members: tuple[str, ...] = offered.sources["members"]
        meeting, number = self._meet(offered, member)
        self._meeting = meeting
        lost = f"{member} lost the learner, or another of {', '.join(members)}, while version"
        lost = f"{lost} {offered.version} was sent"
        try:
            with _lost(lost):
                self._enter(number, 1 + members.index(member), device)
            buckets = buckets_of(offered.slots, offered.sources["bucket_elements"])
            received = self._received(buckets, device, ends, lost)
            yield WeightStream(shapes=offered.shapes, buckets=received)
            with _lost(lost):
                self._end(device, ends)
        except BaseException:
            self._leave()
            with suppress(RuntimeError):
                meeting.set(_answer(member), "")
            raise
        finally:
            self._meeting = None

    def _meet(self, offered: OfferedWeights, member: str) -> tuple[Store, str]:
        """Come to the meeting of an offer; returns it and the number of the group to be in."""
        host, port = offered.sources["address"]
        deadline = timedelta(seconds=offered.deadline_s + ANSWER_S)  # the learner speaks first
        try:
            if self._store is None or self._address != (host, port):
                self._leave()
                self._store = TCPStore(host, port, is_master=False, timeout=deadline)
                self._address = (host, port)
            meeting = PrefixStore(offered.sources["meeting"], self._store)
            meeting.set(member, self._group_number)
            meeting.wait([GO], deadline)
            number = meeting.get(GO).decode()
        except RuntimeError as error:
            self._leave()
            self._store = None
            raise TransferLost(
                f"the learner that offered version {offered.version} to {member} is gone, or sent"
                f" nothing within {offered.deadline_s:g} s ({_first_line(error)})"
            ) from error
        if number.startswith(REFUSED):
            self._leave()
            raise TransferLost(number.removeprefix(REFUSED))
        self._members = offered.sources["members"]
        return meeting, number

    def _received(
        self,
        buckets: Sequence[Sequence[ParameterSlot]],
        device: torch.device,
        ends: float,
        lost: str,
    ) -> Iterator[dict[str, Tensor]]:
        """The buckets as they come; while one is used, the next is on its way."""
        size = max(bucket[-1].end - bucket[0].start for bucket in buckets)
        buffers = torch.empty(2, size, dtype=torch.bfloat16, device=device)

        def coming(index: int) -> tuple[Tensor, Work]:
            bucket = buckets[index]
            place = buffers[index % 2][: bucket[-1].end - bucket[0].start]
            return place, self._broadcast(place)

        with _lost(lost):
            values, work = coming(0)
        for index, bucket in enumerate(buckets):
            with _lost(lost):
                self._finish(work, ends)
                arrived = values
                if index + 1 < len(buckets):
                    values, work = coming(index + 1)
            yield {slot.name: slot.of(arrived, bucket[0].start) for slot in bucket}

    # --- both

    def _enter(self, number: str, rank: int, device: torch.device) -> None:
        """Be in the group of this number, as this rank; rank 0 is the learner."""
        if number == self._group_number:
            return
        self._leave()
        assert self._store is not None, "this process has met the others"
        size, store = 1 + len(self._members), PrefixStore(number, self._store)
        if device.type == "cuda":
            from torch._C._distributed_c10d import ProcessGroupNCCL

            options = ProcessGroupNCCL.Options()
            # its watchdog ends the process; `_finish` ends the transfer long before
            options._timeout = timedelta(seconds=10 * self._deadline_s)
            torch.cuda.set_device(device)
            self._group = ProcessGroupNCCL(store, rank, size, options)
        else:
            deadline = timedelta(seconds=self._deadline_s)
            self._group = ProcessGroupGloo(store, rank, size, deadline)
        self._group_number = number

    def _leave(self) -> None:
        """Leave the group, if there is one, so that the others' collectives end as well."""
        group, self._group, self._group_number = self._group, None, ""
        if group is not None:
            with suppress(RuntimeError):
                group.abort()

    def _broadcast(self, values: Tensor) -> Work:
        assert self._group is not None, "this process has entered the group"
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        # the stubs lack it
        return self._group.broadcast([values], options)  # type: ignore[attr-defined,no-any-return]

    def _end(self, device: torch.device, ends: float) -> None:
        """Return when all ranks have come here: every member has every bucket."""
        assert self._group is not None, "this process has entered the group"
        here = torch.ones(1, device=device)
        self._finish(self._group.allreduce([here]), ends)  # type: ignore[attr-defined]  # as above

    def _finish(self, work: Work, ends: float) -> None:
        """Wait for a collective. Raises TimeoutError at this time, RuntimeError if it fails or
        rank 0 ends the transfer."""
        look = time.monotonic() + LOOK_S
        while not work.is_completed():
            now = time.monotonic()
            if now >= ends:
                raise TimeoutError("the deadline has passed")
            if self._meeting is None and self._offered is None:
                raise RuntimeError("the weights were withdrawn")
            if self._meeting is not None and now >= look:
                look = now + LOOK_S
                if self._meeting.check([ENDED]):
                    raise RuntimeError("the learner has ended the transfer")
            time.sleep(POLL_S)
        work.wait()


@contextmanager
def _lost(what: str) -> Iterator[None]:
    """Turn a collective's failure into TransferLost, which says so."""
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        raise TransferLost(f"{what} ({_first_line(error)})") from error


def _missing(
    meeting: Store, keys: Sequence[str], ends: float, is_over: Callable[[], bool] = bool
) -> list[str]:
    """The keys that nobody has set when all are, or when the time or the transfer is over."""
    while True:
        missing = [key for key in keys if not meeting.check([key])]
        if not missing or is_over() or time.monotonic() >= ends:
            return missing
        time.sleep(POLL_S)


def _answer(member: str) -> str:
    """The key by which a member answers, after a failure, that it lives."""
    return f"{member} lives"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
