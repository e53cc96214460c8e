"""The report page: what is on it, that nothing on it is run or fetched, and which questions it
shows."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_factories import keep_answers, make_commit, make_evaluation, make_row, make_run
from transcript_factories import make_episode_row

from artifacts import layout
from artifacts.datasets.shapes import drawn
from artifacts.pictures import PictureFolder, as_url
from artifacts.records import Outcome, ShownPicture
from artifacts.reports import canvas, plots
from artifacts.reports.answers import HeldoutQuestion, distinct, questions_of, spread
from artifacts.reports.page import duration
from artifacts.reports.summary import headline
from artifacts.store import Store
from flows import report_folder
from flows.commands.command_line import assemble
from flows.config.run_config import RunConfig
from flows.evaluate import read_answers
from flows.report_folder import ReportFolder
from flows.results import RunResults, device_shares, typical_step
from flows.run import OpenRun
from flows.run_facts import command_of, settings_of

HOSTILE = '<script>alert("x")</script><img src=http://evil.example/a.png>'


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def run(tmp_path: Path) -> OpenRun:
    """A run of two steps, evaluated before and after, that changed two fields of its preset."""
    made = make_run(
        Store.open(str(tmp_path)),
        make_commit(1),
        make_commit(2, kind="long"),
        num_steps=2,
        learner={"optimizer": {"learning_rate": 1e-5}},
    )
    keep_answers(made, 0, make_row("heldout/0", "4 & more", 0.0), make_row("heldout/1", "x", 0.0))
    keep_answers(made, 2, make_row("heldout/0", HOSTILE, 1.0), make_row("heldout/1", "y", 0.0))
    return made


def page_of(run: OpenRun, *, is_over: bool = True) -> str:
    evaluations = {0: make_evaluation({"heldout/0": 0.0, "heldout/1": 0.0})}
    if is_over:
        evaluations[2] = make_evaluation({"heldout/0": 1.0, "heldout/1": 0.0}, version=2)
    results = RunResults(run)
    links = {"MLflow": "http://localhost:5000/#/runs/1"} | dict(run.links)
    summary = results.summary(run.commits, evaluations, links)
    answers = read_answers(run.store, evaluations)
    pictures = results.pictures(run.commits, evaluations)
    return results.page(run.commits, evaluations, answers, summary, pictures, is_over).decode()


def test_an_evaluation_without_any_verdict_ends_no_run(run: OpenRun) -> None:
    unscored, scored = make_evaluation({}), make_evaluation({"heldout/0": 1.0}, version=2)
    results = RunResults(run)
    for last, told in ((unscored, "nan -> nan"), (scored, "nan -> 1.000")):
        summary = results.summary(run.commits, {0: unscored, 2: last}, {})
        assert headline(summary).startswith(f"Held-out reward {told}; no prompt has a verdict")
        assert results.pictures(run.commits, {0: unscored, 2: last})


def test_the_page_tells_dollars_where_prices_are_set(tmp_path: Path) -> None:
    commit = make_commit(1)
    figures = {"cost/dollars": 0.5, "cost/reserved_dollars": 0.5, "cost/added_s": 10.0}
    uses = {"cost/reserved_generating_s": 15.0, "cost/reserved_idle_s": 5.0}
    priced = replace(commit, metrics={**commit.metrics, **figures, **uses})
    run = make_run(Store.open(str(tmp_path)), priced, prices={"classes": {"reserved": 90.0}})
    keep_answers(run, 0, make_row("heldout/0", "4", 0.0), make_row("heldout/1", "x", 0.0))
    words = " ".join(Page(page_of(run, is_over=False)).text.split())
    assert "0.50 dollars (0.5 a step), 200 trained tokens a dollar" in words
    assert "reserved, generating 15.0 s 75.0 %" in words


def test_the_page_tells_result_cost_configuration_and_where_to_look(run: OpenRun) -> None:
    html = page_of(run)
    page = Page(html)
    words = " ".join(page.text.split())
    assert "finished, 2 steps" in words
    assert "held-out reward 0.000 → 0.500 +0.500 [+0.000, +1.000] (95%, n=2)" in words
    assert "the interval contains 0, so this run shows no change" in words
    assert "What differs from the preset tiny." in words
    assert "learner.optimizer.learning_rate 0.0002 1e-05" in words
    assert "rollout 12.0 s 60.0 %" in words  # where the time went
    assert re.search(r"trained in answers that were trained on 200 66\.7 %", words)  # the cost
    assert re.search(r"evaluated in answers to held-out questions 60 20\.0 %", words)
    hrefs = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert {"http://localhost:4200/f1", "http://localhost:5000/#/runs/1"} <= set(hrefs)
    titles = [attributes["aria-label"] for tag, attributes in page.tags if tag == "figure"]
    learning = ["Loss and gradient", "Entropy and length"]
    assert titles[:3] == ["Reward", *learning]
    assert titles[3:5] == ["Step time by stage", "Response lengths"]
    assert titles[5:] == ["Step 1, a short round"]  # with step 2 below
    assert "reward 0.0 s" not in words  # nor any other row of zeros
    assert "all 1" in words
    assert "learner.loss.kind ppo_clip" in words
    assert "loss ppo_clip, advantage grpo, learning rate 1e-05" in words
    assert "rollflow demo --preset tiny --set num_steps=2" in words
    assert "--set learner.optimizer.learning_rate=1e-05" in words


def test_the_page_shows_the_pictures_of_its_questions(tmp_path: Path) -> None:
    made = make_run(Store.open(str(tmp_path)), make_commit(1))
    folder = PictureFolder(made.store.child(layout.PICTURES))
    contents = [
        folder.keep(drawn(f'shapes:{{"bars":[{high},1,1],"ink":"red"}}')) for high in (3, 4)
    ]
    shown = [
        (ShownPicture(content=content, begin=1, rows=3, columns=3),)
        for content in (*contents, "gone")
    ]
    for step in (0, 1):
        rows = [make_row(f"heldout/{number}", "3", float(step)) for number in range(3)]
        asked = [
            replace(row, prompt=replace(row.prompt, text="first=", pictures=pictures))
            for row, pictures in zip(rows, shown, strict=True)
        ]
        keep_answers(made, step, *asked)
    page = Page(page_of(made, is_over=False))
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sorted(map(str, sources)) == sorted(as_url(folder.read(each)) for each in contents)
    assert all(str(source).startswith("data:image/png;base64,") for source in sources)


def test_the_page_shows_what_an_episode_showed(tmp_path: Path) -> None:
    made = make_run(Store.open(str(tmp_path)), make_commit(1))
    folder = PictureFolder(made.store.child(layout.PICTURES))
    content = folder.keep(drawn('shapes:{"bars":[3,1,1],"ink":"red"}'))
    row = make_episode_row("heldout/0")
    episode = row.response.generated.episode
    assert episode is not None
    first, *later = episode.turns
    shown = replace(first, pictures=(ShownPicture(content=content, begin=1, rows=3, columns=3),))
    generated = replace(row.response.generated, episode=replace(episode, turns=(shown, *later)))
    keep_answers(made, 0, replace(row, response=replace(row.response, generated=generated)))
    keep_answers(made, 1, make_episode_row("heldout/0"))
    page = Page(page_of(made, is_over=False))
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sources == [as_url(folder.read(content))]
    assert "(picture) Guess." in " ".join(page.text.split())


def test_the_command_starts_a_run_of_the_same_settings() -> None:
    """A part of another kind is given whole, values that a shell would take apart are quoted."""
    given = {"preset": "tiny", "num_steps": 12, "learner": {"loss": {"kind": "gspo"}}}
    words = shlex.split(command_of(RunConfig.model_validate(given)))
    assert words[:4] == ["rollflow", "demo", "--preset", "tiny"]
    values = assemble("tiny", "", words[5::2])
    assert RunConfig.model_validate(values) == RunConfig.model_validate(given)


def test_samples_of_training_stand_beside_those_held_out(run: OpenRun) -> None:
    words = " ".join(Page(page_of(run)).text.split())
    assert "What it was trained on" in words
    assert "step 1 1 + 2? add reward 1.00" in words
    assert "step 2 1 + 2? add reward 1.00" in words


def test_answers_stand_side_by_side_and_stay_text(run: OpenRun) -> None:
    html = page_of(run)
    page = Page(html)
    assert HOSTILE in page.text
    assert "4 & more" in page.text
    before, after = page.text.index("4 & more"), page.text.index(HOSTILE)
    assert "reward 0.00" in page.text[:before]
    assert "reward 1.00" in page.text[before:after]


def test_episodes_stand_side_by_side_turn_by_turn_with_figures_above_them(tmp_path: Path) -> None:
    figures = {"episode/turns_mean": 2.5, "episode/success_share": 0.5}
    commit = replace(make_commit(1), metrics={**make_commit(1).metrics, **figures})
    made = make_run(Store.open(str(tmp_path)), commit, num_steps=1)
    said = ((HOSTILE, "90", 0.0),)
    keep_answers(made, 0, make_episode_row("heldout/0", said, Outcome.WRONG))
    keep_answers(made, 2, make_episode_row("heldout/0"))
    page = Page(page_of(made))
    words = " ".join(page.text.split())
    assert "held-out episodes before after episodes 1 1 success 0.0% 100.0%" in words
    assert "heldout/0, guess; seed 17" in words
    before, after = words.index(HOSTILE), words.index("1 environment Guess.")
    assert "wrong, terminated, 1 turn, 2 sampled and 4 given tokens" in words[:before]
    assert before < words.index("model 90 reward 0; model 0.50 s") < after
    assert words.index("model 10") < words.index("2 environment Higher. model 15")
    titles = [attributes["aria-label"] for tag, attributes in page.tags if tag == "figure"]
    assert "Episodes" in titles
    asked = {step: make_evaluation({"heldout/0": 0.0}) for step in (0, 2)}
    assert read_answers(made.store, asked).markdown().count("**after**") == 1


def test_answers_of_one_turn_have_no_table_of_episodes(run: OpenRun) -> None:
    page = Page(page_of(run))
    assert "held-out episodes" not in page.text
    assert "add; expected 3" in " ".join(page.text.split())
    titles = [attributes["aria-label"] for tag, attributes in page.tags if tag == "figure"]
    assert "Episodes" not in titles
    assert read_answers(run.store, {0: make_evaluation({"heldout/0": 0.0})}).markdown() == ""


def test_nothing_on_the_page_is_run_or_fetched(run: OpenRun) -> None:
    html = page_of(run)
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert not [name for _, given in page.tags for name in given if name.startswith(("on", "src"))]
    assert not re.search(r"url\((?!#)|@import", html)
    assert "prefers-color-scheme: dark" in html


def test_a_run_under_way_has_a_page_without_a_result(run: OpenRun) -> None:
    words = " ".join(Page(page_of(run, is_over=False)).text.split())
    assert "under way, 2 of 2 steps" in words
    assert "held-out reward 0.000 before training" in words
    assert "not asked yet" in words


def test_a_run_before_its_first_step_has_a_page_too(tmp_path: Path) -> None:
    made = make_run(Store.open(str(tmp_path)))
    keep_answers(made, 0, make_row("heldout/0", "4", None))
    words = " ".join(Page(page_of(made, is_over=False)).text.split())
    assert "no step is committed yet" in words
    assert "no reward" in words


async def test_short_steps_do_not_draw_a_page_each(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is due some time after the beginning, the next when the last took its share of the
    time since then."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    folder, path = ReportFolder(run), run.local_report(layout.PAGE)
    assert path
    evaluations = {0: make_evaluation({"heldout/0": 0.0, "heldout/1": 0.0})}
    page = folder._results.page

    def drawn_in_a_second(*told: Any, **more: Any) -> bytes:  # Any: as there
        nonlocal now_s
        now_s += 1.0
        return page(*told, **more)

    monkeypatch.setattr(folder._results, "page", drawn_in_a_second)

    async def is_drawn(after_s: float) -> bool:
        nonlocal now_s
        now_s += after_s
        path.unlink(missing_ok=True)
        await folder.redraw(run.commits, evaluations)
        await folder.wait_until_drawn()
        return path.exists()

    first_s, next_s = report_folder.FIRST_AFTER_S, 1.0 / report_folder.DRAWING_SHARE
    assert [await is_drawn(after_s) for after_s in (first_s / 2, first_s / 2)] == [False, True]
    assert [await is_drawn(after_s) for after_s in (next_s / 2, next_s / 2)] == [False, True]


async def test_a_run_that_keeps_no_report_has_its_summary_alone(tmp_path: Path) -> None:
    made = make_run(Store.open(str(tmp_path)), make_commit(1), num_steps=1, keep={"report": False})
    evaluations = {0: make_evaluation({"heldout/0": 0.0})}
    folder = ReportFolder(made)
    folder._due_s = 0.0
    await folder.redraw(made.commits, evaluations)
    await folder.finish(made.commits, evaluations, read_answers(made.store, evaluations), "model")
    report = made.local_report(layout.PAGE)
    assert report
    assert sorted(path.name for path in report.parent.iterdir()) == ["summary.md"]
    summary = (report.parent / "summary.md").read_text()
    assert str(report.parent) in summary
    assert layout.PAGE not in summary


def test_drawings_have_the_colours_of_the_page() -> None:
    drawing = canvas.svg(plots.reward_curve([1, 2], [0.1, 0.2], {}))
    assert drawing == canvas.svg(plots.reward_curve([1, 2], [0.1, 0.2], {}))
    assert drawing.startswith("<svg")
    assert "var(--ink)" in drawing
    assert canvas.INK not in drawing
    assert canvas.PAPER not in drawing


def question(name: str, before: float, after: float) -> HeldoutQuestion:
    rows = make_row(name, "a", before), make_row(name, "b", after)
    return questions_of([rows[0]], [rows[1]])[0]


def test_shown_questions_run_from_the_largest_gain_to_the_largest_loss() -> None:
    asked = [question(f"heldout/{place}", 0.5, place / 10) for place in range(11)]
    shown = spread(asked, 3)
    assert [round(found.gain, 1) for found in shown] == [0.5, 0.0, -0.5]
    assert spread(asked[:2], 5) == [asked[1], asked[0]]
    assert spread([], 3) == []


def test_a_question_that_is_asked_twice_is_shown_once() -> None:
    asked = [question(f"heldout/{place}", 0.5, 1.0) for place in range(3)]
    assert distinct(asked) == asked[:1]


def test_a_question_without_a_verdict_on_one_side_gains_nothing() -> None:
    rows = [make_row("heldout/0", "a", None)]
    assert questions_of(rows, [make_row("heldout/0", "b", 1.0)])[0].gain == 0.0
    assert questions_of(rows, [])[0].after == ()


def test_device_shares_sum_to_one() -> None:
    shares = device_shares([make_commit(1), make_commit(2)])
    assert shares["work"] == pytest.approx(0.75)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert device_shares([]) == {}


def test_a_preset_differs_from_itself_in_nothing() -> None:
    assert settings_of(RunConfig.model_validate({"preset": "tiny"})) == []


def test_the_typical_step_is_of_median_length() -> None:
    commits = [make_commit(step) for step in (1, 2, 3)]
    assert typical_step(commits, "short") == commits[1]


@pytest.mark.parametrize(
    ("seconds", "said"), [(2.34, "2.3 s"), (48, "48 s"), (720, "12 min"), (11520, "3.2 h")]
)
def test_durations_read_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
