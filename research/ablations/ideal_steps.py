"""How fast a variant's steps would be if they cost nothing but their work: the schedule itself,
played with what a synchronous run of the same repeat recorded.

    records of `sync` ─▶ lengths, verdicts, the engines' pace, the learner's seconds a token
                         ─▶ the variant's own rounds on a simulated machine ─▶ s a step

What two devices can win by overlapping is the time in which one of them waits, and that follows
from when every response ends. So it is played, not put into a formula of two means: such a bound
has to tell work from tail by two synchronous runs, and knows nothing of fuller batches. In it are
decoding, prefills, waits for verdicts, training, updates and publications; left out are
orchestration, what a first step compiles, and what two processes on one machine take from each
other. Leaves out variants whose steps overlap on devices that both generate and train.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flows.config.run_config import RunConfig
from flows.played_config import played_run
from tasks.simulation.calibration import calibrated, counted, typical
from tasks.simulation.recorded import RecordedRun, recorded_work
from tasks.simulation.steps import play


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """What the planned steps of a run come to."""

    step_s: float  # mean of a step
    tokens_per_s: float  # trained ones, sampled


def ideal_of(recorded: RecordedRun, config: RunConfig) -> Ideal | None:
    """The steps of this configuration; None where they cannot be played. ValueError for records
    that tell no pace, and for roles that share some of their devices only."""
    update_s = typical(counted(recorded), "time/update_s")
    run = played_run(
        config,
        replace(calibrated(recorded), updating_s=update_s),
        recorded_work(recorded, config.sampling.max_response_tokens),
        config.num_steps,
    )
    if run.overlaps and run.placement.is_colocated:
        return None
    planned = play(run).planned
    taken_s = planned.steps[-1].end_s - planned.steps[0].start_s
    return Ideal(
        step_s=taken_s / len(planned.steps),
        tokens_per_s=planned.total("tokens_trained") / taken_s,
    )
