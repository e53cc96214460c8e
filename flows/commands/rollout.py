"""rollflow rollout: rounds without training. They are generated, scored and recorded as those of a
run, by the first model's weights throughout: for studies of rounds, and to fill a data set.

    --preset, --settings ─▶ settings, trains=false ─▶ rollflow demo
    --from RUN ─▶ the settings of RUN, its rounds again ─┘

`rollflow demo --resume` goes on with them, too.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from flows.commands import demo
from flows.commands.options import command, run_store

# parts that the rounds of another run decide
OF_THE_ROUNDS = ("preset", "seed", "task", "batch", "scheduling")


def parser() -> ArgumentParser:
    made = demo.parser()
    made.prog = "rollflow rollout"
    made.description = (
        "Generate and score rounds with servers of its own, without training: the same records,"
        " tables, MLflow run and report as of a run."
    )
    made.epilog = "example: rollflow rollout --from last --set model.path=runs/last/model"
    made.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="RUN",
        help="ask the prompts of this run's rounds again, with its settings but for --set; by name"
        " under --root, a beginning of it, or last; or a path or URL",
    )
    return made


@command(parser, RuntimeError)
def main(options: Namespace) -> int:
    """Run the rounds as `rollflow demo` runs steps; the exit status is that of the run."""
    with tempfile.TemporaryDirectory(prefix="rollflow-") as scratch:
        if options.source:
            _take_over(options, Path(scratch) / "settings.json")
        if not options.resume:
            options.set = [*options.set, "trains=false"]
        return demo.run(options)


def _take_over(options: Namespace, file: Path) -> None:
    """Write the settings of the run that --from names, for its rounds to be asked again. Raises
    ValueError beside options that these rounds decide."""
    from artifacts.commit import read_commits, read_manifest
    from flows.config.settings_file import kept_config, settings_of, write_settings

    named = [assignment.partition("=")[0] for assignment in options.set]
    given = {name.partition(".")[0] for name in named}
    refused = sorted(given.intersection(OF_THE_ROUNDS))
    refused += [f"--{name}" for name in ("preset", "settings", "resume") if getattr(options, name)]
    if refused:
        raise ValueError(
            f"--from must decide on the rounds alone, got {', '.join(refused)} beside it; leave"
            " that out, or leave --from out"
        )
    store = run_store(options.source, str(options.root))
    config = kept_config(read_manifest(store).config)
    values = settings_of(config)
    values |= {"replays": store.url, "num_steps": max(1, len(read_commits(store)))}
    values.pop("keep", None)
    write_settings(file, values)
    options.settings = str(file)
    options.set = [*_kinds(named, config.model.kind), *options.set]


def _kinds(named: Iterable[str], kind: str) -> list[str]:
    """The assignment without which model.path would be no field of the run's model."""
    is_new = "model.path" in named and "model.kind" not in named and kind != "path"
    return ["model.kind=path"] if is_new else []


if __name__ == "__main__":
    sys.exit(main())
