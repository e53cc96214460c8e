"""Who asks a service opens it with a token from a variable or a file, which no setting, record or
error holds."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from guarded_service import guarded
from pydantic import ValidationError
from record_factories import make_generated

from artifacts.records import Outcome, Prompt
from tasks.environments.adapters.http import HttpConfig
from tasks.rewards.service import ServiceConfig

TOKEN, VARIABLE = "t0ken", "ROLLFLOW_TEST_TOKEN"
PROMPT = Prompt(prompt_id="0/1", domain="add", token_ids=(1,), gold="8", text="3 + 5?")


@pytest.mark.parametrize(
    ("written", "sent"), [(f"{TOKEN}\n", f"Bearer {TOKEN}"), (f"Basic {TOKEN}", f"Basic {TOKEN}")]
)
def test_a_service_is_opened_by_a_variable_or_a_file(
    written: str, sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, written)
    (tmp_path / "token").write_text(written)
    with guarded(sent) as url:
        for place in ({"token_variable": VARIABLE}, {"token_file": str(tmp_path / "token")}):
            config = ServiceConfig.model_validate({"url": url, **place})
            reward = config.build_reward()
            assert reward.score(PROMPT, make_generated()).outcome is Outcome.OK
            assert TOKEN not in f"{config!r} {config.model_dump()} {reward.name}"
            environment = HttpConfig.model_validate({"url": url, **place}).build()
            assert environment.reset(0) == "go"
        refused = ServiceConfig(url=url).build_reward().score(PROMPT, make_generated())
        assert "status 401" in refused.detail


def test_an_environment_goes_on_from_a_pickle_that_holds_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with guarded(f"Bearer {TOKEN}") as url:
        recipe = HttpConfig(url=url, token_variable=VARIABLE).recipe()
        environment = pickle.loads(pickle.dumps(recipe)).build()
        state = pickle.dumps(environment)
        assert TOKEN.encode() not in state
        assert pickle.loads(state).reset(0) == "go"


@pytest.mark.parametrize(
    ("place", "written", "told"),
    [
        ({"token_variable": VARIABLE}, "", f"{VARIABLE} is not set; export it"),
        ({"token_variable": VARIABLE}, f"{TOKEN}\n{TOKEN}", "must be one line of ASCII"),
        ({"token_file": "no/such/file"}, "", "token_file must be a file that can be read"),
    ],
)
def test_a_token_that_cannot_be_had_is_told_when_the_run_opens(
    place: dict[str, str], written: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, written)
    for config in (ServiceConfig, HttpConfig):
        made = config.model_validate({"url": "http://host", **place})
        with pytest.raises(ValueError, match=told) as caught:
            made.authorization()
        assert TOKEN not in str(caught.value)


def test_a_token_comes_from_one_place() -> None:
    with pytest.raises(ValidationError, match="must come from token_variable or token_file, got"):
        ServiceConfig(url="http://host", token_variable=VARIABLE, token_file="a")
