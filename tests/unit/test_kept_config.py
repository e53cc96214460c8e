"""What a run was started with is told as the run's, not as something that whoever reads it gave."""

from __future__ import annotations

import pytest

from flows.config.run_config import RunConfig
from flows.config.settings_file import kept_config

KEPT = RunConfig.model_validate({"preset": "tiny-sync"}).model_dump(mode="json")


def test_a_kept_configuration_comes_back() -> None:
    assert kept_config(KEPT).model_dump(mode="json") == KEPT


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"turbo": True}, "turbo"), ({"num_steps": "many"}, "num_steps")],
)
def test_that_of_another_version_is_said_to_be_the_manifests(
    changed: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=rf"the run's manifest must have .*\({told}.*; use the"):
        kept_config(KEPT | changed)


def test_a_run_of_an_earlier_version_is_told_which_version_resumes_it() -> None:
    kept = KEPT | {"learner": KEPT["learner"] | {"temperature": 1.0}}
    told = r"learner\.temperature is no setting any more: .*; use commit 1a2b, with which"
    with pytest.raises(ValueError, match=told):
        kept_config(kept, "commit 1a2b, with which the run was begun")
