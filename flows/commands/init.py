"""rollflow init FOLDER: write a first folder of one's own, which trains as it is.

    run.json          settings, laid over the preset `own`
    questions.jsonl   24 questions with their answers
    reward.py         what an answer is worth, with its own test

The paths in run.json are as seen from where the command was given: runs are started there.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from flows.commands.options import command, folder

FOLDER = "mine"
RUN, QUESTIONS, REWARD = "run.json", "questions.jsonl", "reward.py"
NUM_STEPS = 16
QUESTIONS_TEXT = "".join(
    f'{{"prompt": "What is {left} + {right}?", "answer": "{left + right}"}}\n'
    for left in (3, 4, 6, 7, 8, 9)
    for right in (5, 8, 11, 14)
)

REWARD_SOURCE = '''"""What an answer is worth: 1 if the last number in it is the right one, else 0.

A reward is a function of the question, the model's response and the gold, which is the answer that
your file has. It runs in a process of its own. What a model writes is never an error: pay 0 for
what cannot be read.
"""

import re

NUMBER = re.compile(r"(?<![0-9])-?[0-9]+(?:\\.[0-9]+)?")


def reward(prompt: str, response: str, gold: str) -> float:
    """1.0 if the last number of the response equals the gold, which must be a number, else 0.0."""
    numbers = NUMBER.findall(response)
    return float(bool(numbers) and float(numbers[-1]) == float(gold))


def test_the_right_number_is_paid() -> None:
    for response in ("7", "3 + 4 = 7.", "Let me see: 3 and 4 is 7", "It is 7.0"):
        assert reward("What is 3 + 4?", response, "7") == 1.0, response


def test_another_number_is_not_paid_even_if_the_right_digit_is_in_it() -> None:
    for response in ("17", "75", "-7", "7 or 8", "seven", "", "0.7"):
        assert reward("What is 3 + 4?", response, "7") == 0.0, response
'''


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="rollflow init",
        description="Write a folder with settings, 24 questions and a reward with its test, to"
        " train on as they are and then to change.",
        epilog="example: rollflow init mine",
    )
    made.add_argument(
        "folder",
        nargs="?",
        type=folder,
        default=Path(FOLDER),
        help=f"new or empty folder (default: {FOLDER})",
    )
    return made


@command(parser)
def main(options: Namespace) -> int:
    """Write the files, and say how to test the reward and how to train."""
    place: Path = options.folder
    write_files(place)
    from artifacts.printable import printable

    reward, run = (shlex.quote(str(place / name)) for name in (REWARD, RUN))
    programs = _programs()
    lines = {
        place / RUN: "settings over the preset own: SmolLM2-135M-Instruct, 16 steps",
        place / QUESTIONS: "24 questions, a line each",
        place / REWARD: "what an answer is worth, and its test",
    }
    width = max(len(str(path)) for path in lines)
    for path, what in lines.items():
        print(f"{printable(str(path)):<{width}}  {what}")
    print(
        f"\ntest the reward:  {programs}python -m pytest {reward}",
        f"train, minutes:   {programs}rollflow demo --settings {run}",
        "Then put your questions and your reward in their place; --set model.kind=path --set"
        " model.path=DIRECTORY takes your model.",
        sep="\n",
    )
    return 0


def _programs() -> str:
    """What stands before python and rollflow where a shell does not find them by name."""
    folder = Path(sys.executable).parent
    if str(folder) in os.environ.get("PATH", "").split(os.pathsep):
        return ""
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return f"{shlex.quote(str(shown))}/"


def write_files(place: Path) -> None:
    """Write the three files. ValueError if the folder holds anything."""
    if place.is_dir() and (held := sorted(path.name for path in place.iterdir())):
        raise ValueError(
            f"FOLDER must be new or empty, {place} holds {', '.join(held[:3])}"
            f"{' and more' if held[3:] else ''}; name another: rollflow init {place}-2"
        )
    place.mkdir(parents=True, exist_ok=True)
    settings = {
        "preset": "own",
        "num_steps": NUM_STEPS,
        "model": {"kind": "smollm2"},
        "task": {"path": str(place / QUESTIONS)},
        "rewards": {"*": {"path": f"{place / REWARD}:reward"}},
    }
    (place / RUN).write_text(json.dumps(settings, indent=2) + "\n")
    (place / QUESTIONS).write_text(QUESTIONS_TEXT)
    (place / REWARD).write_text(REWARD_SOURCE)


if __name__ == "__main__":
    sys.exit(main())
