"""`rollflow`: its help page, its commands, the completion of shells."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from flows.commands import rollflow
from flows.commands.completion import SHELLS, whole_parser
from flows.commands.rollflow import COMMANDS, help_page, main

HEAVY = ("torch", "vllm", "prefect", "pydantic", "distributed", "mlflow", "pyarrow", "rich")


def test_the_help_page_has_every_command_with_an_example_and_fits_a_terminal() -> None:
    page = help_page()
    for command in COMMANDS:
        assert f"  rollflow {command.name} {command.example}".rstrip() in page
        assert command.purpose in page
    assert max(len(line) for line in page.splitlines()) <= 80
    headings = [line for line in page.splitlines() if line.endswith(":") and line[0].isalpha()]
    assert len(headings) == len({command.group for command in COMMANDS})


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_is_shown_where_it_is_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == help_page() + "\n"


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["train", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from contextlib import suppress\n"
        "from flows.commands.rollflow import main\n"
        f"with suppress(SystemExit): main({words!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_misspelt_command_is_told_what_it_may_have_been(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["trian"]) == 2
    said = capsys.readouterr().err
    assert "got 'trian'; did you mean 'rollflow train'?" in said
    assert main(["xyzzy"]) == 2
    assert "'rollflow --help' lists them" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_a_module_that_helps(
    command: object, capsys: pytest.CaptureFixture[str]
) -> None:
    name, module = command.name, command.module  # type: ignore[attr-defined]
    assert import_module(module).parser().prog == f"rollflow {name}"
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: rollflow {name}" in capsys.readouterr().out


def test_arguments_reach_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--list"]) == 0
    assert "tiny-sync" in capsys.readouterr().out


def test_a_command_that_is_interrupted_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rollflow, "import_module", interrupted)
    assert main(["explain"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_who_has_enough_ends_a_command_without_a_word() -> None:
    command = [sys.executable, "-m", "flows.commands.rollflow", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")
    process.stderr.close()


def test_the_script_is_installed_under_its_name() -> None:
    (script,) = entry_points(group="console_scripts", name="rollflow")
    assert script.load() is main


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_commands_options_and_presets(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("demo", "compare", "resume", "smollm2-mixed"):
        assert word in script


def test_bash_completes_a_command_and_a_preset() -> None:
    import shtab

    script = shtab.complete(whole_parser(), shell="bash")
    assert completed(script, "rollflow", "exp") == ["explain"]
    assert completed(script, "rollflow", "demo", "--preset", "tiny-s") == ["tiny-sync"]


def test_bash_completes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shtab

    script = shtab.complete(whole_parser(), shell="bash")
    for name in ("runs/tiny-2026a", "runs/tiny-2026b", "other/agent-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / "mlflow").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completed(script, "rollflow", "ask", "t") == ["tiny-2026a", "tiny-2026b"]
    assert completed(script, "rollflow", "demo", "--resume", "tiny-2026b") == ["tiny-2026b"]
    assert completed(script, "rollflow", "compare", "last", "l") == ["last"]
    assert completed(script, "rollflow", "episodes", "--root", "other", "") == ["last", "agent-1"]


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    program = (
        f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}\n"
        f"_shtab_rollflow rollflow '{words[-1]}' '{words[-2]}'\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return [word.strip() for word in done.stdout.split()]


def test_a_fault_of_ours_is_a_sentence_on_the_terminal_and_a_traceback_in_the_log(
    tmp_path: Path,
) -> None:
    program = (
        "import sys\n"
        "sys.modules['flows.config.run_config'] = None\n"
        "from flows.commands.rollflow import main\n"
        "sys.exit(main(['train']))\n"
    )
    environment = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    (log,) = tmp_path.glob("*.log")
    error, place = done.stderr.splitlines()
    assert done.returncode == 1
    assert error.startswith("error: ModuleNotFoundError: import of flows.config.run_config halted")
    assert place == f"log: {log}"
    assert "Traceback (most recent call last)" in log.read_text()


def test_without_a_server_train_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows.commands.train"], capture_output=True, text=True, env={}
    )
    assert done.returncode == 2
    assert "PREFECT_API_URL is not set; use 'rollflow demo'" in done.stderr
