"""A user's working directory has modules named as ours, as Python's own and as libraries': no
process of ours takes them for those, and what the user names by import path is found in it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from flows.commands.rollflow import COMMANDS
from tasks.cluster.dask_cluster import SETTINGS
from tasks.cluster.process_environment import SAFE_PATH, python_path
from tasks.isolation.interpreter import own
from tasks.rewards.verify_worker import VerifyWorker

ROOT = Path(__file__).parents[2]
ROLLFLOW = Path(sys.executable).with_name("rollflow")
NAMES = ("tasks", "flows", "artifacts", "random", "torch", "types", "code", "signal", "prefect")
ENDS_WITHIN_S = 120
NOWHERE = "tcp://127.0.0.1:9"
# a call of each command that ends by itself, and its exit status
CALLS = {
    "demo": ("--set seed=no --prefect-port 0", 2),
    "train": ("--set seed=no", 2),
    "rollout": ("--from nobody", 2),
    "worker": (f"{NOWHERE} --grace-s 1", 3),
    "workers": (f"{NOWHERE} --plan", 0),
    "init": ("mine", 0),
    "import": ("nowhere.yaml", 2),
    "explain": ("--preset tiny", 0),
    "doctor": ("", None),  # what it finds is the machine's
    "calibrate": ("--set seed=no", 2),
    "recommend": ("--devices no", 2),
    "check": ("environment my_environment:Guess --seeds 2", 0),
    "runs": ("", 0),
    "ask": ("nobody question", 2),
    "episodes": ("nobody", 2),
    "compare": ("one two", 2),
    "track": ("nobody", 2),
    "ui": ("", 2),
    "serve": ("nobody", 2),
    "push": ("nobody somewhere", 2),
    "completion": ("bash", 0),
}


# as the console script calls them, each in a process forked from one that has imported libraries
EVERY_COMMAND = """
import json, os, sys, traceback
from flows.commands.rollflow import import_ours_first, main

import_ours_first()
import distributed, prefect.flows, torch

ended = {}
for name, words in json.loads(sys.argv[1]).items():
    if (child := os.fork()) == 0:
        with open(sys.argv[0] + name, "wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
        if not {"", ".", os.getcwd()}.isdisjoint(sys.path):
            print("Traceback: the user's modules are found by whatever is imported later")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    with open(sys.argv[0] + name) as said:
        ended[name] = [os.waitstatus_to_exitcode(status), said.read()]
print(json.dumps(ended))
"""
ELSEWHERE = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "DASK_LOGGING__DISTRIBUTED": "error"}


def in_the_way(folder: Path) -> Path:
    """The folder, with the user's modules in it."""
    for name in NAMES:
        (folder / f"{name}.py").write_text("raise RuntimeError('the module of the user')\n")
    (folder / "my_reward.py").write_text("def reward(*_):\n    return 0.5\n")
    game = "from examples.guess_environment import Guess\n"
    (folder / "my_environment.py").write_text(game)
    return folder


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works."""
    monkeypatch.chdir(in_the_way(tmp_path))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path


def test_every_command_is_called_here() -> None:
    assert CALLS.keys() == {command.name for command in COMMANDS}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, str]]:
    """Exit status and words of each command, called in the directory of such a user."""
    script = tmp_path_factory.mktemp("bin") / "commands.py"  # whose folder is none of the user's
    script.write_text(EVERY_COMMAND)
    directory = in_the_way(tmp_path_factory.mktemp("user"))
    calls = {name: [name, *words.split()] for name, (words, _) in CALLS.items()}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(calls)],
        cwd=directory,
        env=environment | ELSEWHERE,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S * 2,
    )
    assert done.returncode == 0, done.stderr
    return {name: (code, said) for name, (code, said) in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", CALLS)
def test_a_command_takes_no_module_of_the_users_for_its_own(
    name: str, ended: Mapping[str, tuple[int, str]]
) -> None:
    code, said = ended[name]
    assert "the module of the user" not in said
    assert "Traceback" not in said
    assert CALLS[name][1] in (None, code), said


def test_nor_does_the_console_script(directory: Path) -> None:
    done = subprocess.run(
        [str(ROLLFLOW), "runs"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("directory")
def test_a_child_and_its_children_import_ours_and_pythons() -> None:
    """As multiprocessing, vLLM and MLflow start theirs: with nothing but the environment."""
    program = (
        "import code, random, signal, types, artifacts, flows, tasks.cluster, subprocess, sys\n"
        "sys.argv[1:] and subprocess.run([sys.executable, '-c', sys.argv.pop()], check=True)\n"
    )
    command = [sys.executable, "-c", program, program]
    subprocess.run(command, env=os.environ | python_path(), check=True, timeout=ENDS_WITHIN_S)


def test_a_reward_is_found_in_the_working_directory_and_pythons_modules_are_not(
    directory: Path,
) -> None:
    (directory / "my_reward.py").write_text(
        "import random, sys\n\ndef reward(*_):\n    return random.Random(0).random()\n"
    )
    worker = VerifyWorker("my_reward:reward", timeout_s=5.0)
    try:
        assert worker.call("question", "answer", "gold").kind == "value"
    finally:
        worker.close()


def test_behind_everything_else_processes_behind_walls_look_into_the_working_directory(
    directory: Path,
) -> None:
    *_, last = own().search_path
    assert last == str(directory)


def test_what_the_user_has_in_pythonpath_is_kept_behind_these_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f":/one:{ROOT}:/two:")
    assert python_path() == {"PYTHONPATH": f"{ROOT}:/one:/two", "PYTHONSAFEPATH": "1"}
    monkeypatch.setenv("PYTHONPATH", python_path()["PYTHONPATH"])
    assert python_path()["PYTHONPATH"] == f"{ROOT}:/one:/two"
    monkeypatch.delenv("PYTHONPATH")
    assert python_path()["PYTHONPATH"] == str(ROOT)


def test_workers_that_are_spawned_begin_with_it() -> None:
    assert SAFE_PATH.items() <= SETTINGS["distributed.nanny.pre-spawn-environ"].items()


def starts(tree: ast.AST) -> list[str]:
    """The command lines in a source that begin with this interpreter."""
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    begun = [node for node in lists if node.elts and "sys.executable" in ast.unparse(node.elts[0])]
    bound = [node for node in calls if ast.unparse(node.func) == "bound_command"]
    return [ast.unparse(node) for node in (*begun, *bound)]


def test_whatever_starts_an_interpreter_says_where_that_imports_from() -> None:
    """A command line has -P, or its module, or the one that runs it, gives it `python_path`."""
    runners = {"counterparts.py": "real.py", "page_servers.py": "local_stack.py"}
    wanting = []
    for room in ("flows", "tasks", "artifacts"):
        for path in sorted((ROOT / room).rglob("*.py")):
            runner = path.with_name(runners.get(path.name, path.name))
            if "python_path()" not in runner.read_text():
                found = starts(ast.parse(path.read_text()))
                wanting += [path.name for command in found if "'-P'" not in command]
    assert wanting == ["parent.py"], "whose command lines are others'"


def test_a_process_that_knows_these_sources_by_their_installation_alone_finds_both(
    directory: Path,
) -> None:
    """As a flow of Prefect's worker does, whose path does not begin with them."""
    program = (
        "import sys; sys.path[:] = [path for path in sys.path if path]\n"
        "from tasks.rewards.verify_worker import VerifyWorker\n"
        "from artifacts.import_path import find\n"
        "find('my_reward:reward'); import flows.config, artifacts.layout\n"
        "worker = VerifyWorker('my_reward:reward', timeout_s=5.0)\n"
        "print(worker.call('question', 'answer', 'gold').kind); worker.close()\n"
    )
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=directory)
    assert done.stdout == "value\n", done.stderr
