"""Does a simulation that was calibrated on one recorded run predict other configurations here?

    python -m research.benchmarks.simulated_against_real --out DIR                 # the tiny model
    python -m research.benchmarks.simulated_against_real --out DIR --preset smollm2 --steps 6

    policy sync, for real ─▶ constants and workload ─▶ every other configuration: simulated,
                                                       then for real ─▶ predicted / measured

A run that DIR has already is not run again: stop whenever you like, and go on with the same
command; --only-print runs nothing. Everything is started in the process group of this command. A
first step is left out, simulated and real: it compiles and fills caches. Lengths are replayed by
the place of a prompt in the run, so that what the model learns meanwhile is in them as far as the
other configuration learns alike; the configurations ask the same questions with the same seeds.
Machines change their speed: `decoding` and `training` are what this run's own responses and
computed tokens took over what the recorded pace says of just these. A step that is predicted wrong
by that much was predicted right for the machine as it had been.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.commit import read_commits
from artifacts.layout import MANIFEST
from artifacts.store import Store
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from flows.played_config import played_run
from tasks.simulation.calibration import (
    calibrated,
    decode_drift,
    pace_of,
    train_s_per_token,
)
from tasks.simulation.figures import PlayedRun
from tasks.simulation.recorded import read_run, recorded_work
from tasks.simulation.steps import play

RECORDED = "sync"  # the configuration that the machine is calibrated on
SYNC = ("scheduling.kind=sync", "scheduling.dynamic_sampling=0")
TAIL = (
    "scheduling.kind=tail_batching",
    "scheduling.drain=false",
    "scheduling.dynamic_sampling=0",
    "scheduling.response_overprovision=1.25",
)
FIGURES = {  # parts of a step: the metric of a real one
    "step_s": "time/step_s",
    "rollout_s": "time/rollout_s",
    "train_s": "time/train_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is run."""

    out: Path
    preset: str
    num_steps: int
    longest_tokens: int  # bound on a response in the recorded run
    settings: tuple[str, ...]  # FIELD=VALUE of every configuration

    def configurations(self) -> Mapping[str, tuple[str, ...]]:
        """What each sets beside `settings`; the recorded one first."""
        return {
            RECORDED: SYNC,
            "tail batching": TAIL,
            "tail batching, 1.5": (*TAIL, "scheduling.prompt_overprovision=1.5"),
            "sync, half the cap": (
                *SYNC,
                f"sampling.max_response_tokens={self.longest_tokens // 2}",
            ),
        }

    def assignments(self, name: str) -> tuple[str, ...]:
        """FIELD=VALUE over the preset."""
        return (
            f"num_steps={self.num_steps}",
            "evaluation.num_prompts=2",
            "evaluation.responses_per_prompt=1",
            *(setting for setting in self.settings),
            *self.configurations()[name],
        )

    def config(self, name: str) -> RunConfig:
        """ValueError for what RunConfig refuses."""
        return RunConfig.model_validate(assemble(self.preset, "", self.assignments(name)))

    def folder(self, name: str) -> Path:
        """Where the real run is."""
        return self.out / name.replace(", ", "-").replace(" ", "-")

    def is_done(self, name: str) -> bool:
        """Whether all its steps are committed."""
        store = Store.open(str(self.folder(name)))
        return store.exists(MANIFEST) and len(read_commits(store)) >= self.num_steps


def run_really(work: Measurement, name: str) -> None:
    """As a user starts it; what it says goes to a file beside it. RuntimeError when it fails."""
    folder = work.folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "flows.commands.demo", "--preset", work.preset]
    command += ["--root", str(work.out), "--prefect-port", "0"]
    for setting in (*work.assignments(name), f'run_name="{folder.name}"'):
        command += ["--set", setting]
    log = folder.with_suffix(".txt")
    with log.open("w") as sink:
        code = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT).returncode
    if code:
        raise RuntimeError(f"{name} ended with {code}, its words are in {log}")


def lines(work: Measurement) -> Iterator[str]:
    """A line for every configuration that has been run."""
    recorded = read_run(Store.open(str(work.folder(RECORDED))))
    machine = calibrated(recorded)
    pace = pace_of(recorded)
    yield (
        f"step_ms={1e3 * pace.step_s:.2f} per_sequence_ms={1e3 * pace.step_s_per_sequence:.3f}"
        f" exponent={pace.sequence_exponent}"
        f" prefill_ms_per_token={1e3 * pace.prefill_s_per_token:.3f} residual={pace.residual:.3f}"
        f" train_ms_per_computed_token={1e3 * machine.token_s:.3f}"
        f" update_s={machine.updating_s:.2f} publish_s={machine.publishing_s:.2f}"
    )
    for name in work.configurations():
        if work.is_done(name):
            config = work.config(name)
            replayed = recorded_work(recorded, config.sampling.max_response_tokens)
            simulated = play(played_run(config, machine, replayed, work.num_steps)).planned.after(1)
            real = read_run(Store.open(str(work.folder(name)))).steps[1 : work.num_steps]
            drifts = (decode_drift(pace, real), train_s_per_token(real) / machine.token_s)
            yield line(name, simulated, [step.metrics for step in real], drifts)


def line(
    name: str,
    simulated: PlayedRun,
    real: Sequence[Mapping[str, float]],
    drifts: tuple[float, float],
) -> str:
    """Predicted and measured means of one configuration, and how the machine's speed had changed:
    of decoding and of training."""
    told = [f"{name:<20}"]
    for figure, metric in FIGURES.items():
        measured = sum(step[metric] for step in real) / len(real)
        guess = simulated.mean(figure)
        told.append(f"{figure}={guess:.2f}/{measured:.2f} ({guess / measured:.2f})")
    decoding, training = drifts
    return " ".join((*told, f"decoding={decoding:.2f} training={training:.2f}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where runs are kept"
    )
    parser.add_argument("--preset", default="tiny", help="what is run (default: %(default)s)")
    parser.add_argument(
        "--steps",
        type=int,
        default=11,
        help="steps of a run; the first is not counted (default: %(default)s)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="of every configuration"
    )
    parser.add_argument("--only-print", action="store_true", help="run nothing")
    return parser


def main() -> int:
    """Record, predict, run, and print a line for each configuration as it comes."""
    options = _parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        config = RunConfig.model_validate(assemble(options.preset, "", options.set))
        work = Measurement(
            out=options.out,
            preset=options.preset,
            num_steps=options.steps,
            longest_tokens=config.sampling.max_response_tokens,
            settings=tuple(options.set),
        )
        for name in () if options.only_print else work.configurations():
            if not work.is_done(name):
                print(f"{name} ...", flush=True)
                run_really(work, name)
        print("configuration, then predicted/measured means of a step in seconds (ratio)")
        for told in lines(work):
            print(told, flush=True)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
