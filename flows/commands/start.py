"""python -m flows.commands.start: run the training flow in this process, on a Prefect server that
is running.

Heavy imports wait until `main`: the workers of a local cluster import this file again, because it
is the main module.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys


def main() -> int:
    """Validates, runs the flow, prints one sentence for what a user can mend."""
    options = _arguments()
    if "PREFECT_API_URL" not in os.environ:
        return _complain(
            "a Prefect server must be running, PREFECT_API_URL is not set; use 'make demo', or"
            " 'prefect server start' and set it"
        )
    from flows.commands.command_line import assemble
    from flows.config.run_config import RunConfig

    try:
        config = RunConfig.model_validate(assemble(options.preset, options.resume, options.set))
        from flows.train import train

        asyncio.run(train(config))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, RuntimeError, TimeoutError) as error:
        return _complain(error)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m flows.commands.start",
        description="Train in this process, on a Prefect server that is running.",
    )
    parser.add_argument(
        "--preset",
        default="smollm2",
        help="named configuration (default: %(default)s); python -m flows.commands.explain --list",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field, for example num_steps=5",
    )
    parser.add_argument(
        "--resume", default="", metavar="RUN_ID", help="go on with a run that was interrupted"
    )
    return parser.parse_args()


def _complain(error: object) -> int:
    from flows.commands.command_line import sentence

    print(f"error: {sentence(error)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
