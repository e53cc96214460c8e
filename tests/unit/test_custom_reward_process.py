"""What the process of a user's own reward gets from outside: modules beside its file, the variables
that are named, time to start, and a life as long as its memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from record_factories import make_generated

from artifacts.records import Outcome, Prompt, Score
from tasks.environments.adapters.custom import CustomEnvironment, CustomEnvironmentConfig
from tasks.rewards.custom import CustomConfig, CustomReward
from tasks.rewards.verify_worker import VerifyWorker

Build = Callable[..., CustomReward]
PROMPT = Prompt(prompt_id="0/1", domain="own", token_ids=(1,), gold="g", text="q")


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Build]:
    """A reward of a file with this text, beside what else the test wrote."""
    rewards: list[CustomReward] = []

    def build(text: str, **settings: object) -> CustomReward:
        path = tmp_path / "own_reward.py"
        path.write_text(text)
        config = {"path": f"{path}:reward", "timeout_s": 20.0} | settings
        rewards.append(CustomReward(CustomConfig.model_validate(config)))
        return rewards[-1]

    yield build
    for reward in rewards:
        reward.close()


def score(reward: CustomReward, text: str = "") -> Score:
    return reward.score(PROMPT, make_generated(text=text))


@pytest.mark.parametrize(
    "text",
    [
        "from marks import mark\ndef reward(*_): return mark()",
        "def reward(*_):\n    from marks import mark\n    return mark()",
        "import own_package.deep as deep\ndef reward(*_): return deep.MARK",
    ],
)
def test_modules_beside_the_file_are_imported(tmp_path: Path, built: Build, text: str) -> None:
    (tmp_path / "more.py").write_text("MARK = 0.25\n")
    (tmp_path / "marks.py").write_text("import more\ndef mark(): return more.MARK\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/__init__.py").touch()
    (tmp_path / "own_package/deep.py").write_text("MARK = 0.25\n")
    assert score(built(text)).reward == 0.25


def test_a_module_beside_the_file_takes_the_place_of_no_other(tmp_path: Path, built: Build) -> None:
    for name in ("json", "random", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise OSError('not this one')\n")
    text = "import json, numpy, random\ndef reward(*_): return json.loads('0.5')\n"
    assert score(built(text)).reward == 0.5


def test_modules_beside_the_file_of_an_environment_are_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_environment.py").write_text("WORD = 'said beside'\n")
    (tmp_path / "own_environment.py").write_text(
        "class Own:\n    def reset(self, seed):\n        import beside_environment\n"
        "        return beside_environment.WORD\n"
        "    def step(self, text): return text, 0.0, True, False, {}\n"
    )
    config = CustomEnvironmentConfig(path=f"{tmp_path}/own_environment.py:Own")
    assert CustomEnvironment(config).reset(0) == "said beside"


READS = "import os\ndef reward(*_): return float(os.environ.get('OWN_NUMBER', -1))\n"


def test_only_variables_that_are_named_reach_the_reward(
    monkeypatch: pytest.MonkeyPatch, built: Build
) -> None:
    monkeypatch.setenv("OWN_NUMBER", "0.25")
    assert score(built(READS)).reward == -1.0
    assert score(built(READS, environment=["OWN_NUMBER"])).reward == 0.25
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    threads = "import os\ndef reward(*_): return int(os.environ['OMP_NUM_THREADS'])\n"
    assert score(built(threads)).reward == 1.0
    assert score(built(threads, environment=["OMP_NUM_THREADS"])).reward == 7.0


def test_a_variable_that_is_not_set_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, built: Build
) -> None:
    monkeypatch.delenv("OWN_NUMBER", raising=False)
    with pytest.raises(ValueError, match=r"must name variables that are set, got OWN_NUMBER for"):
        built(READS, environment=["PATH", "OWN_NUMBER"])


@pytest.mark.parametrize("name", ["OWN_NUMBER=1", "", "1A", "A B"])
def test_what_is_no_name_of_a_variable_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="environment"):
        CustomConfig.model_validate({"path": "own:reward", "environment": [name]})


@pytest.mark.parametrize("what", ["raise KeyError(key)", "return key", "return [key] + missing"])
def test_no_verdict_tells_the_value_of_a_variable(
    monkeypatch: pytest.MonkeyPatch, built: Build, what: str
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-1234567")
    text = f"import os\nkey = os.environ['OWN_KEY']\ndef reward(*_): {what}\n"
    verdict = score(built(text, environment=["OWN_KEY"]))
    assert verdict.outcome is Outcome.INFRA
    assert "sk-1234567" not in verdict.detail
    with pytest.raises(ValueError, match=r"RuntimeError: \$OWN_KEY is refused") as refused:
        built("import os\nraise RuntimeError(os.environ['OWN_KEY'] + ' is refused')",
              environment=["OWN_KEY"])  # fmt: skip
    assert "sk-1234567" not in str(refused.value)


def test_a_slow_import_is_told_the_setting_that_gives_it_time(built: Build) -> None:
    slow = "import select\nselect.select([], [], [], 60)\ndef reward(*_): return 1.0\n"
    with pytest.raises(ValueError, match=r"within 0\.5 s, .* raise deadlines\.start_s"):
        built(slow, start_s=0.5)


COUNTS = """
calls, held = 0, []
def count(grow_bytes):
    global calls
    calls += 1
    if calls == 1:
        held.append(bytearray(100 << 20))  # a model that is loaded with the first call
    held.append(bytearray(grow_bytes))
    return float(calls)
"""


def test_a_process_that_stays_is_replaced_only_when_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "counts.py"
    path.write_text(COUNTS)

    def counts(grow_bytes: int) -> list[object]:
        worker = VerifyWorker(
            f"{path}:count", timeout_s=20.0, memory_bytes=1 << 29, recycle_calls=12, stays=True
        )
        found = [worker.call(grow_bytes).value for _ in range(30)]
        worker.close()
        return found

    assert counts(0) == [float(number) for number in range(1, 31)]
    leaking = counts(16 << 20)
    assert leaking[:12] == [float(number) for number in range(1, 13)]
    assert 1.0 in leaking[12:]
    assert None not in leaking
