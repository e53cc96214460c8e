"""The first hour in a terminal, as README and docs have it: the first run from a bare clone, what
it leaves, a wrong setting, a stopped run, a folder and parts of one's own, Prefect."""

from __future__ import annotations

import json
import re
import shutil
import time
from itertools import takewhile
from pathlib import Path

import pexpect
import pytest
from terminal import Shell, Typed, plain

ROOT = Path(__file__).parents[2]
WRONG = (
    ("num_stepz=3", "num_steps"),
    ("num_steps=-3", "num_steps"),
    ("learner.optimizer.learning_rate=abc", "learning_rate"),
    ("learner.loss.kind=gpso", "gspo"),
    ("model.kind=path", "model"),
    ("scheduling.kind=tail_batchin", "tail_batching"),
    ("sampling.temperatur=1", "temperature"),
    ("engine.max_model_length=64", "max_model_len"),
    ("evaluation.num_prompts=0", "evaluation.num_prompts"),
    ("keep.checkpoint_every=1", "keep.checkpoint_every"),
)
HEARD_S = 1.0  # within which Ctrl-C is answered
pytestmark = pytest.mark.timeout(2400)


def words(typed: Typed) -> str:
    """What a command wrote, where the terminal's width broke no line."""
    return " ".join(typed.text.split())


def test_the_first_run_ends_with_a_gain_that_is_no_chance(demo: Typed, shell: Shell) -> None:
    assert demo.status == 0, demo.text[-3000:]
    gain = re.search(r"paired difference \+[0-9.]+ \[([+-][0-9.]+), ", words(demo))
    assert gain, demo.text[-3000:]
    assert float(gain[1]) > 0
    for name in ("rollflow ask", "rollflow ui", "rollflow init"):
        assert name in demo.text
    listed = shell.type("rollflow runs")
    assert "finished" in listed.text


def test_no_line_of_the_first_run_is_wider_than_the_terminal(demo: Typed) -> None:
    steps = [line for line in demo.text.splitlines() if re.match(r"\s*\d+ (short|long)\s", line)]
    assert steps
    assert all(len(line.rstrip()) <= 80 for line in steps)


def test_help_is_there_at_once_and_names_every_command(demo: Typed, shell: Shell) -> None:
    began_s = time.monotonic()
    typed = shell.type("rollflow --help")
    print(f"help took {time.monotonic() - began_s:.1f} s")
    assert typed.status == 0
    for name in ("demo", "init", "explain", "doctor", "runs", "ask", "push", "ui"):
        assert f"rollflow {name}" in typed.text


def test_a_wrong_command_is_told_with_the_right_one(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow dmeo")
    assert typed.status == 2
    assert "did you mean 'rollflow demo'?" in typed.text


def test_the_machine_is_looked_at(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow doctor", timeout_s=300)
    assert typed.status in (0, 1)
    assert "Traceback" not in typed.text


def test_a_configuration_is_explained_without_a_start(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow explain --preset smollm2")
    assert typed.status == 0
    assert "a step in numbers" in typed.text


def test_all_wrong_settings_are_told_at_once(demo: Typed, shell: Shell) -> None:
    settings = " ".join(f"--set {setting}" for setting, _ in WRONG)
    began_s = time.monotonic()
    typed = shell.type(f"rollflow demo --preset tiny {settings}")
    print(f"{len(WRONG)} wrong settings took {time.monotonic() - began_s:.1f} s")
    assert typed.status == 2
    assert [named for _, named in WRONG if named not in words(typed)] == []
    assert "Traceback" not in typed.text


def test_a_run_that_is_stopped_hears_it_and_goes_on(demo: Typed, shell: Shell) -> None:
    child = shell.spawn("rollflow demo --preset tiny --set num_steps=30", timeout_s=300)
    child.expect("step 6 of 30")
    child.sendintr()
    child.expect("stopping", timeout=HEARD_S)
    child.expect(pexpect.EOF, timeout=90)
    resume = re.search(r"rollflow demo --resume (\S+?)'", plain(child.before))
    assert resume, plain(child.before)
    typed = shell.type(f"rollflow demo --resume {resume[1]} --set num_steps=9", timeout_s=300)
    assert typed.status == 0, typed.text[-3000:]
    assert "step 9 of 9" in typed.text
    again = shell.type("rollflow demo --resume last", timeout_s=120)
    assert "num_steps" in again.text
    typed = shell.type("rollflow compare tiny-2 last --plot compare.png")
    assert typed.status == 2  # two runs begin so
    first, second = sorted(path.name for path in (shell.folder / "runs").glob("tiny-2*"))[:2]
    typed = shell.type(f"rollflow compare {first} {second} --plot compare.png", timeout_s=180)
    assert typed.status == 0, typed.text
    assert "Held-out reward" in typed.text
    assert (shell.folder / "compare.png").stat().st_size > 0


def test_two_runs_at_once_need_no_setting(demo: Typed, shell: Shell) -> None:
    command = "rollflow demo --preset tiny --set num_steps=3"
    first = shell.spawn(command, timeout_s=300)
    first.expect("run: ")
    second = shell.type(command, timeout_s=300)
    first.expect(pexpect.EOF)
    first.close()
    assert (first.exitstatus, second.status) == (0, 0), second.text[-3000:]
    assert "is taken: the Prefect server has port" in words(second)


def test_the_trained_model_answers(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow ask last --task", timeout_s=300)
    assert typed.status == 0, typed.text
    assert "tokens in" in typed.text


def test_what_a_push_would_send_is_shown_and_a_push_asks_for_a_login(
    demo: Typed, shell: Shell
) -> None:
    typed = shell.type("rollflow push last me/sums --dry-run")
    assert typed.status == 0
    assert "model.safetensors" in typed.text
    assert "Held-out reward" in typed.text
    assert str(shell.folder) not in typed.text
    typed = shell.type(f"HOME={shell.folder} rollflow push last me/sums --private")
    assert typed.status == 2
    assert "hf auth login" in typed.text


def test_a_folder_of_ones_own_trains_by_the_line_that_is_said(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow init mine")
    assert typed.status == 0
    assert "rollflow demo --settings mine/run.json" in typed.text
    assert shell.type("python -m pytest mine/reward.py").status == 0
    typed = shell.type("rollflow demo --settings mine/run.json", timeout_s=1800)
    assert typed.status == 0, typed.text[-3000:]
    assert "Held-out reward" in words(typed)


def test_twenty_questions_of_ones_own_need_no_second_try(demo: Typed, shell: Shell) -> None:
    model = max((shell.folder / "runs").glob("tiny-2*/model"))
    rows = [{"prompt": f"{n}+1+2=", "answer": str(n + 3)} for n in range(20)]
    file = shell.folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (shell.folder / "my_reward.py").write_text(readme_reward())
    typed = shell.type(
        f"rollflow demo --preset own --set model.path={model} --set task.path=questions.jsonl"
        " --set 'rewards.*.path=my_reward.py:reward' --set num_steps=2",
        timeout_s=600,
    )
    assert typed.status == 0, typed.text[-3000:]
    assert "step 2 of 2" in typed.text


def readme_reward() -> str:
    """The reward that README shows."""
    shown = re.search(r"```python\n(def reward.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown
    return shown[1]


def test_a_loss_of_ones_own_is_checked_and_trains(demo: Typed, shell: Shell) -> None:
    shutil.copy(shell.folder / "examples/praise_loss.py", shell.folder / "my_loss.py")
    name = re.search(r"^class (\w+)", (shell.folder / "my_loss.py").read_text(), re.MULTILINE)
    assert name
    typed = shell.type(f"rollflow check loss my_loss.py:{name[1]}")
    assert typed.status == 0, typed.text
    typed = shell.type(
        "rollflow demo --preset tiny --set num_steps=2 --set learner.loss.kind=custom"
        f" --set learner.loss.path=my_loss.py:{name[1]}",
        timeout_s=600,
    )
    assert typed.status == 0, typed.text[-3000:]


def test_a_chat_template_that_renders_nothing_is_told_before_the_start(
    demo: Typed, shell: Shell
) -> None:
    (shell.folder / "mine.jinja").write_text("{% for message in messages %}")
    typed = shell.type("rollflow explain --set model.chat_template=mine.jinja")
    assert "model.chat_template must render a question" in words(typed)


def test_a_deployment_is_served_and_run_by_the_line_that_is_said(demo: Typed, shell: Shell) -> None:
    with shell.running("rollflow serve tiny", timeout_s=300) as child:
        child.expect("Ctrl-C ends all")
        said = plain(child.before).splitlines()
        # a line that the terminal's width breaks goes on below
        start = next(n for n, line in enumerate(said) if "PREFECT_API_URL=" in line)
        line = "".join(takewhile(lambda part: "runs are kept" not in part, said[start:]))
        typed = shell.type(line.strip().replace('"num_steps": 10', '"num_steps": 2'), 600)
        assert typed.status == 0, typed.text[-3000:]
        assert "Completed" in typed.text


def test_every_command_of_readme_was_typed(demo: Typed, shell: Shell) -> None:
    """Stands last in the last file."""
    text = (ROOT / "README.md").read_text()
    block = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL))
    shown = set(re.findall(r"^(?:rollflow|make|python -m) [\w-]+", block, re.MULTILINE))
    typed = {name for name in shown if any(name in command for command in shell.typed)}
    assert shown <= typed
