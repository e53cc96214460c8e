"""The end of the seeding window in a round: the devices that it began with stop generating, and
what runs on them goes on at its elastic workers.

    no elastic worker            ──▶ the stream trainer decides, as in a round without elastic
    workers time up, work done  ──▶ ScaleDown of every device group that can train: its learners
    begin with
                            what is complete

`seeding` has the rules. Pure: one object decides for one round. Leaves out how responses move, and
what becomes of them when every elastic worker goes: the router takes the retired engines back then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.scheduling.device_groups import DeviceGroup
from tasks.scheduling.seeding import is_over, is_time_up
from tasks.scheduling.stream_training import FreesDevices, Moment, Reading, ScaleDown


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The end of a window."""

    at_s: float  # seconds of the round
    is_early: bool  # whether there was nothing left to do before the time was up


class SeedingWindow:
    """Frees all devices at once when the window closes (`FreesDevices`)."""

    def __init__(
        self, window_s: float | None, groups: Sequence[DeviceGroup], alone: FreesDevices
    ) -> None:
        """window_s: see `seeding.is_over`. alone: decides as long as the window is open."""
        self.window_s = window_s
        self.closing: Closing | None = None  # while it is open
        self._groups = tuple(groups)
        self._alone = alone

    @property
    def next_look_s(self) -> float | None:
        return self.window_s if self.closing is None else None

    def start(self) -> list[ScaleDown]:
        return self._alone.start()

    def is_due(self, moment: Moment) -> bool:
        is_open = self.closing is None
        return is_open and (self._closes(moment) or self._alone.is_due(moment))

    def handle(self, reading: Reading) -> list[ScaleDown]:
        """Every device group that still generates and could train, once; before that what the other
        one frees."""
        if self.closing is not None:
            return []
        if not self._closes(reading):
            return self._alone.handle(reading)
        is_early = not is_time_up(self.window_s, reading.elapsed_s)
        self.closing = Closing(at_s=reading.elapsed_s, is_early=is_early)
        in_service = set(reading.capacity_tokens)
        return [
            ScaleDown(engines=group.engines, learners=group.learners)
            for group in self._groups
            if group.engines and group.learners and set(group.engines) <= in_service
        ]

    def _closes(self, moment: Moment) -> bool:
        return is_over(
            self.window_s,
            moment.elapsed_s,
            num_own_running=moment.num_running,
            num_workers=moment.num_elastic_workers,
        )
