"""Every metric that the product logs is described, and none beyond; the page is the catalogue."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from artifacts.reports.figures import COLUMNS, HEADLINES
from flows.commands.explain import main
from tasks.metrics.catalogue import METRICS, is_described, metrics_page

ROOT = Path(__file__).parents[2]
# files whose texts of the form stage/quantity are metrics that they make, or names of such
MAKERS = (
    "artifacts/reports/device_cost.py",
    "artifacts/reports/episode_figures.py",
    "artifacts/reports/tracking.py",
    "flows/evaluate.py",
    "tasks/elastic/worker_history.py",
    "tasks/learner/reports.py",
    "tasks/learner/version_sums.py",
    "tasks/metrics/monitors.py",
    "tasks/metrics/report.py",
    "tasks/metrics/step_metrics.py",
    "tasks/scheduling/ledger.py",
    "tasks/scheduling/staleness.py",
)
NAMES = [metric.name for metrics in METRICS.values() for metric in metrics]


def texts_of(path: Path) -> Iterator[str]:
    """All texts of a file; a * stands for what an f-string fills in."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            inner |= set(map(id, node.values))
            parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inner:
            yield str(node.value)


MADE = {
    text
    for maker in MAKERS
    for text in texts_of(ROOT / maker)
    if re.fullmatch(r"[a-z]+/[a-z0-9_*]*[a-z0-9*]", text)
}


def test_every_metric_that_the_product_makes_is_described() -> None:
    missing = [made for made in MADE if not any(fnmatchcase(name, made) for name in NAMES)]
    assert not missing
    assert len(MADE) > 120


def test_no_metric_is_described_that_the_product_does_not_make() -> None:
    known = {*MADE, *HEADLINES, *COLUMNS, "system/*"}
    beyond = [name for name in NAMES if not any(fnmatchcase(name, made) for made in known)]
    assert not beyond
    assert len(NAMES) == len(set(NAMES))


def test_the_headlines_come_first() -> None:
    first = next(iter(METRICS.values()))
    assert [metric.name for metric in first] == list(HEADLINES)
    assert all(metric.worry for metric in first)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("reward/add_mean", True),
        ("cost/spot_lost_s", True),
        ("lag/cut_fraction_at_3", True),
        ("system/gpu_0_power_usage_watts", True),
        ("reward/median", False),
        ("entropy_", False),
    ],
)
def test_a_name_is_found_with_what_its_capitals_stand_for(name: str, is_known: bool) -> None:
    assert is_described(name) == is_known


def test_the_page_is_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--metrics"]) == 0
    printed = capsys.readouterr().out
    assert printed == metrics_page()
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text() == printed, "rollflow explain --metrics > docs/metrics.md"
