"""Random kills of runs of episodes: environment hosts, their fork servers, engines, the flow.

    python -m research.kills.episode_injections --seed 0 --count 50 --json injections.json

Runs of `tiny-agent` are started as a user starts them, and parts of them killed with SIGKILL, at
random moments, sometimes two at once; a killed flow is gone on with by `--resume`. A run that is
over before enough is killed is followed by another. Of each, records must say that every prompt was
trained once, with all its responses, by one weight version, and that every token is booked; every
place of an environment must have been filled again; no process and no shared memory may stay. The
exit status is 0 where all of that holds.

Environments think a little at each turn, and there are fewer places than episodes, so that kills
meet them at work. Only processes are killed that descend from this one (`descendants`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]  # it has no stubs

from flows.config.presets import preset_values
from research.kills.descendants import origins
from research.kills.injected_run import InjectedRun
from research.kills.injection_command import KillExperiment, perform
from research.kills.injections import Victim, engines, flow

PRESET = "tiny-agent"
THINKING = {  # exponential, seconds of a turn
    "kind": "custom",
    "path": "research.kills.delayed:delayed",
    "kwargs": {
        "mean_s": 0.05,
        "deviation_s": 0.05,
        "environment": preset_values(PRESET)["environments"]["guess"],
    },
}
SETTINGS = (
    f"environments.guess={json.dumps(THINKING)}",
    "episodes.hosts.num_hosts=8",
    "evaluation.num_prompts=16",
    "evaluation.responses_per_prompt=1",
    "cluster.dashboard_port=0",
)


def hosts(run: InjectedRun) -> list[psutil.Process]:
    """Processes that environments step in."""
    return [host for forked in origins(run.processes).values() for host in forked]


def fork_servers(run: InjectedRun) -> list[psutil.Process]:
    """Processes that hosts are forked from."""
    return list(origins(run.processes))


VICTIMS: Mapping[str, Victim] = {
    "host killed": Victim(weight=10, find=hosts),
    "fork server killed": Victim(weight=3, find=fork_servers),
    "engine killed": Victim(weight=3, find=engines),
    "flow killed": Victim(weight=2, find=flow, ends_run=True),
}


def main() -> int:
    return perform(
        KillExperiment(
            name="research.kills.episode_injections",
            about=(__doc__ or "").splitlines()[0],
            preset=PRESET,
            settings=SETTINGS,
            victims=VICTIMS,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
