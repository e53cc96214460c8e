"""The first hour as a newcomer types it: help, doctor, a wrong setting, a folder of one's own, the
first run, its answers, its pages. Needs minutes, a terminal (pexpect) and, for the pages, Chromium
with its driver (selenium): `make first-hour-test`."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pexpect", reason="pexpect is not installed: make first-hour-test installs it")

from terminal import Shell, Typed, plain

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):[0-9]+[^\s'\"]*")
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
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("newcomer"))


@pytest.fixture(scope="module")
def demo(shell: Shell) -> Typed:
    """The first run, with few steps."""
    return shell.type("rollflow demo --preset tiny --set num_steps=4", timeout_s=1200)


def test_help_is_there_at_once_and_names_every_command(shell: Shell) -> None:
    began_s = time.monotonic()
    typed = shell.type("rollflow --help")
    print(f"help took {time.monotonic() - began_s:.1f} s")
    assert typed.status == 0
    for name in ("demo", "init", "explain", "doctor", "runs", "ask", "push", "ui"):
        assert f"rollflow {name}" in typed.text


def test_a_wrong_command_is_told_with_the_right_one(shell: Shell) -> None:
    typed = shell.type("rollflow dmeo")
    assert typed.status == 2
    assert "did you mean 'rollflow demo'?" in typed.text


def test_the_machine_is_looked_at(shell: Shell) -> None:
    typed = shell.type("rollflow doctor")
    assert typed.status in (0, 1)
    assert "Traceback" not in typed.text


def test_a_configuration_is_explained_without_a_start(shell: Shell) -> None:
    typed = shell.type("rollflow explain --preset tiny")
    assert typed.status == 0
    assert "a step in numbers" in typed.text


def test_all_wrong_settings_are_told_at_once(shell: Shell) -> None:
    settings = " ".join(f"--set {setting}" for setting, _ in WRONG)
    began_s = time.monotonic()
    typed = shell.type(f"rollflow demo --preset tiny {settings}")
    print(f"{len(WRONG)} wrong settings took {time.monotonic() - began_s:.1f} s")
    told = " ".join(typed.text.split())
    assert typed.status == 2
    assert [named for _, named in WRONG if named not in told] == []
    assert "Traceback" not in typed.text


def test_a_folder_of_ones_own_says_what_to_type_and_is_sound(shell: Shell) -> None:
    typed = shell.type("rollflow init mine")
    assert typed.status == 0
    assert {"run.json", "questions.jsonl", "reward.py"} <= {
        path.name for path in (shell.folder / "mine").iterdir()
    }
    assert "rollflow demo" in typed.text
    assert shell.type("python -m pytest -q -p no:cacheprovider mine/reward.py").status == 0


def test_a_chat_template_that_renders_nothing_is_told_before_the_start(shell: Shell) -> None:
    (shell.folder / "mine.jinja").write_text("{% for message in messages %}")
    typed = shell.type("rollflow explain --set model.chat_template=mine.jinja")
    assert "model.chat_template must render a question" in " ".join(typed.text.split())


def test_the_first_run_ends_with_its_held_out_reward(demo: Typed, shell: Shell) -> None:
    assert demo.status == 0, demo.text[-3000:]
    assert "Held-out reward" in demo.text
    listed = shell.type("rollflow runs")
    assert "finished" in listed.text
    assert "tiny-2" in listed.text


def test_the_trained_model_answers(demo: Typed, shell: Shell) -> None:
    typed = shell.type("rollflow ask last --task", timeout_s=300)
    assert typed.status == 0, typed.text
    assert "tokens in" in typed.text
    typed = shell.type("rollflow ask tiny-2 '1+1='", timeout_s=300)  # the beginning of its name
    assert typed.status == 0, typed.text


def test_what_a_push_would_send_is_shown_and_a_push_asks_for_a_login(
    demo: Typed, shell: Shell
) -> None:
    typed = shell.type("rollflow push last me/sums --dry-run --private")
    assert typed.status == 0
    assert "model.safetensors" in typed.text
    assert "Held-out reward" in typed.text
    assert str(shell.folder) not in typed.text
    typed = shell.type(f"HOME={shell.folder} rollflow push last me/sums")
    assert typed.status == 2
    assert "hf auth login" in typed.text


@pytest.fixture(scope="module")
def addresses(demo: Typed, shell: Shell) -> Iterator[list[str]]:
    """What `rollflow ui` says can be opened, while it serves it."""
    with shell.running("rollflow ui", timeout_s=300) as child:
        child.expect("Ctrl-C")
        found = ADDRESS.findall(plain(child.before))
        yield list(dict.fromkeys(found))


def test_every_address_that_ui_prints_answers(addresses: list[str]) -> None:
    assert addresses
    for address in addresses:
        with urlopen(address, timeout=60) as answer:
            assert answer.status == 200, address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:  # Any: selenium has no types of use
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("Chromium and its driver are not installed: no page was looked at")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument("--window-size=1280,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def test_every_page_shows_something_and_no_console_error(
    addresses: list[str], browser: Any
) -> None:
    faults = []
    for address in addresses:
        browser.get(address)
        time.sleep(3)  # pages of Prefect and MLflow draw themselves
        shown = browser.find_element("tag name", "body").text
        if not shown.strip():
            faults.append(f"{address} shows nothing")
        own = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        faults += [f"{address}: {json.dumps(entry)[:300]}" for entry in own]
    assert not faults
