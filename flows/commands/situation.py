"""The situation in which `rollflow recommend` compares candidates: machine, lengths, configuration.

names of a model and a device ─▶ roofline, law of lengths, preset for such devices ┐
a recorded run ─▶ its lengths and its configuration; calibrated on it, or roofline ┴▶ Situation
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from artifacts.layout import MODEL
from artifacts.store import Store
from flows.commands.options import run_store
from flows.config.overlay import overlay
from flows.config.presets import Values, preset_values
from flows.config.run_config import RunConfig
from flows.config.settings_file import OF_ONE_RUN, kept_config
from tasks.cluster.devices import parse_role_map
from tasks.simulation.calibration import calibrated, pace_of
from tasks.simulation.hardware import COMPARED_WITH, CORE, DEVICES
from tasks.simulation.machine import ROLLPACKER, Machine, TrainingCost
from tasks.simulation.plain import PlainMachine
from tasks.simulation.protocols import RunWork
from tasks.simulation.recorded import RecordedRun, read_run, recorded_work, resampled
from tasks.simulation.shapes import MODELS, ModelShape
from tasks.simulation.workloads import workload

MAX_ENGINE_DEVICES = 8
RECORDED = "recorded"  # the device of a run: the machine that recorded it
NUMBERS = ("devices", "prompts", "responses", "cap")
DEFAULTS = {  # without a recorded run
    "model": "qwen2.5-7b",
    "device": "h800",
    "devices": 16,
    "prompts": 128,
    "responses": 8,
    "cap": 8192,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Machine, lengths and base configuration that all candidates share."""

    machine: Machine | PlainMachine
    base: Values  # configuration that candidates change
    sizes: tuple[int, ...]  # possible numbers of devices of an engine
    group_size: int  # devices of a learner that work together
    work: Callable[[int], RunWork]  # draw -> prompts with the lengths of their responses
    about: str  # machine and lengths, in a sentence
    # the run, if the machine is as it was recorded: its own error bounds those of the candidates
    recorder: RecordedRun | None = None


def build_situation(options: Namespace) -> Situation:
    """Build the situation. ValueError for names that are unknown or numbers that do not fit."""
    store = run_store(options.run, options.root) if options.run else None
    run = read_run(store) if store is not None else None
    if run is not None:
        kept_config(run.config)  # refuses a run of another version
    asked = _completed(options, run)
    work, lengths = _lengths(asked, run)
    if run is not None and asked.device == RECORDED:
        known = _options_of(run.config)
        is_as_recorded = all(getattr(asked, name) == known[name] for name in ("devices", "cap"))
        if asked.model:
            raise ValueError(
                "--model must be left out on the machine that recorded --run, which knows nothing"
                f" of {asked.model!r}; leave it out, or name a --device"
            )
        num_devices = asked.devices
        return Situation(
            machine=replace(calibrated(run), num_devices=num_devices, devices_per_host=num_devices),
            base=_base(asked, run),
            sizes=(1,),
            group_size=1,
            work=work,
            about=f"{asked.devices} devices, a machine fitted to your run (seconds of a response"
            f" are off by {pace_of(run).residual:.0%} on average), {lengths}",
            recorder=run if is_as_recorded else None,
        )
    machine = _roofline(asked, store)
    return Situation(
        machine=machine,
        base=_base(asked, run),
        sizes=_sizes(machine),
        group_size=machine.training.group_size,
        work=work,
        about=f"{machine.model.name} on {asked.devices} {asked.device}, a roofline, compared with"
        f" {COMPARED_WITH.get(asked.device, 'nothing')}, {lengths}; record a run and name it with"
        " --run before you rely on it",
    )


def _completed(options: Namespace, run: RecordedRun | None) -> Namespace:
    known = DEFAULTS if run is None else _options_of(run.config)
    given = {name: value for name, value in vars(options).items() if value is not None}
    asked = Namespace(**{**vars(options), **known, **given})
    for name, value in {name: getattr(asked, name) for name in (*NUMBERS, "seeds")}.items():
        if value < 1:
            raise ValueError(f"--{name} must be >= 1, got {value}; raise it")
    return asked


def _options_of(config: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON values
    placed = parse_role_map(config["cluster"]["roles"])
    return {
        "model": "",
        "device": RECORDED,
        "devices": len({*placed["rollout"], *placed["learner"]}),
        "prompts": config["batch"]["prompts_per_step"],
        "responses": config["batch"]["responses_per_prompt"],
        "cap": config["sampling"]["max_response_tokens"],
    }


def _lengths(asked: Namespace, run: RecordedRun | None) -> tuple[Callable[[int], RunWork], str]:
    if run is None:
        made = workload(asked.workload, asked.cap)
        return lambda draw: made, f"lengths of the workload {asked.workload!r} by a law"
    recorded = recorded_work(run, asked.cap)
    words = f"lengths of {len(recorded.prompts)} recorded prompts, drawn anew for every seed"
    return lambda draw: resampled(recorded, draw), words


def _roofline(asked: Namespace, store: Store | None) -> Machine:
    """A roofline of the devices with the model; the training cost is RollPacker's where known."""
    if asked.device not in DEVICES:
        known = ", ".join(DEVICES)
        raise ValueError(f"--device must be one of {known}, got {asked.device!r}; choose one")
    training = ROLLPACKER.get(asked.model, TrainingCost())
    if asked.devices % training.group_size:
        training = TrainingCost()
    return Machine(
        model=_shape(asked.model, store),
        device=DEVICES[asked.device],
        num_devices=asked.devices,
        training=training,
    )


def _shape(model: str, store: Store | None) -> ModelShape:
    if model in MODELS:
        return MODELS[model]
    path = Path(model)
    if path.is_file():
        return _read_shape(path.parent.name or path.stem, path.read_text(), str(path))
    kept = f"{MODEL}/config.json"
    if not model and store is not None and store.exists(kept):
        return _read_shape("the model of the run", store.read(kept).decode(), kept)
    names = ", ".join(MODELS)
    raise ValueError(
        f"--model must be one of {names} or a config.json, got {model!r}; the run that is over"
        " has one, too"
    )


def _read_shape(name: str, text: str, where: str) -> ModelShape:
    """Parse a config.json. ValueError for another file, or a kind of model without a shape."""
    try:
        return ModelShape.from_config(name, dict(json.loads(text)))
    except (json.JSONDecodeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(
            f"--model must be a config.json of transformers, {where}: {error}; give another one"
        ) from None


def _sizes(machine: Machine) -> tuple[int, ...]:
    sizes = machine.sizes(machine.num_devices, MAX_ENGINE_DEVICES)
    if not sizes:
        bound = min(MAX_ENGINE_DEVICES, machine.num_devices)
        raise ValueError(
            f"{machine.model.name} must fit an engine of up to {bound} {machine.device.name}, its"
            " weights do not; give more or larger devices, or another model"
        )
    return sizes


def _base(asked: Namespace, run: RecordedRun | None) -> Values:
    """The configuration to change, with batch and response bound of the options."""
    if run is not None and asked.preset:
        raise ValueError(
            f"--preset must be left out beside --run, whose settings are changed, got"
            f" {asked.preset!r}; leave one of them out"
        )
    # of the devices that are asked about, not of those that are here
    kind = {}
    if asked.device in DEVICES:
        kind = {"device_kind": "cpu" if asked.device == CORE.name else "cuda"}
    if run is None:
        for_devices = "one-gpu" if asked.devices == 1 else "eight-gpu"
        default = "smollm2" if asked.device == CORE.name else for_devices
        values = overlay(preset_values(asked.preset or default), {"cluster": kind})
        if Path(asked.model).is_file():
            path = str(Path(asked.model).parent)
            values = overlay(values, {"model": {"kind": "path", "path": path}})
    else:
        values = {name: value for name, value in run.config.items() if name not in OF_ONE_RUN}
    config = RunConfig.model_validate(values)
    room = config.engine.max_model_len - config.sampling.max_response_tokens
    return overlay(
        values,
        {
            "batch": {"prompts_per_step": asked.prompts, "responses_per_prompt": asked.responses},
            "sampling": {"max_response_tokens": asked.cap},
            "engine": {"max_model_len": max(config.engine.max_model_len, asked.cap + room)},
            "cluster": kind,
        },
    )
