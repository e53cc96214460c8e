"""Pictures of rows: drawn or read from users' files, put into prompts, kept once by their content;
what is broken makes a row unfit, and what does not go with pictures is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from picture_factories import make_seeing_prompts
from PIL import Image
from plan_factories import CONTEXT
from record_factories import make_request

from artifacts.config_parts import FrozenConfig
from artifacts.datasets.file_rows import FilesConfig
from artifacts.datasets.picture_sources import read_picture
from artifacts.datasets.registry import load_dataset
from artifacts.datasets.rows import Dataset, question_row
from artifacts.datasets.shapes import ShapesConfig, drawn
from artifacts.layout import PICTURES
from artifacts.models.character_tokenizer import character_tokenizer
from artifacts.models.picture_processor import PROCESSOR, processor_of
from artifacts.pictures import MAX_PIXELS, LatestMade, PictureFolder, content_of, opened
from artifacts.records import ShownPicture
from artifacts.store import Store
from flows.config.picture_rules import check_judge, check_pictures
from flows.config.run_config import RunConfig
from tasks.engines.base import PicturedProbe, check_request, pictures_of
from tasks.engines.chat_tokens import ChatTokens
from tasks.engines.picture_prompts import with_pictures
from tasks.engines.vllm.engine import VllmEngineConfig
from tasks.run.prompts import probe_of, prompt_of_row, prompts_of
from tasks.run.run_context import RunContext
from tasks.scheduling.events import PromptRef

SHAPES = ShapesConfig(style="terse", num_prompts=24, heldout_prompts=8)


def png(width: int = 84, height: int = 84, ink: str = "red") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), ink).save(file, format="PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a model that takes pictures, without weights."""
    return make_seeing_prompts(tmp_path_factory.mktemp("model"))


def context(seeing: str, root: Path, task: Any = SHAPES) -> RunContext:  # Any: any task
    engine = VllmEngineConfig(max_model_len=64 + CONTEXT.sampling.max_response_tokens)
    return replace(
        CONTEXT, task=task, seed=0, model_path=seeing, engine=engine, artifact_root=str(root)
    )


def load(folder: Path, *rows: dict[str, Any], **fields: Any) -> Dataset:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"answer": "1", "prompt": "?"} | row) for row in rows))
    fields = {"heldout_fraction": 0.0, "images_field": "images", **fields}
    return load_dataset(FilesConfig(path=str(path), **fields), 0)


def test_shapes_are_the_same_for_a_seed_and_no_held_out_one_is_trained() -> None:
    data = SHAPES.load(3)
    assert data.digest == SHAPES.load(3).digest != SHAPES.load(4).digest
    assert not {row.identity for row in data.rows} & {row.identity for row in data.heldout}
    for row in data.rows:
        (source,) = row.pictures
        assert drawn(source) == drawn(source)
        assert opened(read_picture(source)).size == (84, 84)
        drawing = json.loads(source.partition(":")[2])
        name = row.text.removesuffix("=")
        if "bars" in drawing:
            assert int(row.gold) == drawing["bars"][("first", "second", "third").index(name)]
        else:
            assert int(row.gold) == drawing["fields"].count(name[0])


def test_a_bar_is_as_high_as_it_says() -> None:
    picture = opened(drawn('shapes:{"bars":[1,5,9],"ink":"black"}'))
    for place, height in enumerate((1, 5, 9)):
        column = [picture.getpixel((28 * place + 14, y)) for y in range(84)]
        assert column.count((0, 0, 0)) == 8 * height + 1


def test_rows_take_paths_bytes_and_several_pictures(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(png())
    rows = load(
        tmp_path, {"images": "one.png"}, {"images": ["one.png", "one.png"]}, {"images": None}
    ).rows
    assert [len(row.pictures) for row in rows] == [1, 2, 0]
    assert read_picture(rows[0].pictures[0]) == png()
    table = pa.Table.from_pylist(
        [{"prompt": "?", "answer": "1", "images": [{"bytes": png(), "path": None}]}]
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    config = FilesConfig(
        path=str(tmp_path / "rows.parquet"), images_field="images", heldout_fraction=0.0
    )
    (row,) = load_dataset(config, 0).rows
    assert read_picture(row.pictures[0]) == png()


@pytest.mark.parametrize("value", [7, "", [" "], {"path": None}])
def test_a_field_without_a_picture_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match=r"rows.jsonl:1: a picture must be a path, a URL or bytes"):
        load(tmp_path, {"images": value})


def test_a_row_has_a_bounded_number_of_pictures(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'images' must have at most 8 pictures, got 9"):
        load(tmp_path, {"images": ["a.png"] * 9})


def test_equal_words_about_other_pictures_are_another_question() -> None:
    row = question_row("d", "How many?", "1")
    shown = [replace(row, pictures=(name,)) for name in ("a", "b", "a")]
    assert shown[0].identity == shown[2].identity
    assert len({row.identity, shown[0].identity, shown[1].identity}) == 3


def test_a_prompt_has_a_token_for_each_part_of_a_picture(seeing: str, tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(png(28 * 3, 28 * 2))
    task = FilesConfig(
        path=str(tmp_path / "rows.jsonl"), images_field="images", heldout_fraction=0.0
    )
    rows = load(tmp_path, {"images": ["wide.png", "wide.png"], "prompt": "a=<|image_pad|>"}).rows
    prompt = prompt_of_row(context(seeing, tmp_path, task), rows[0], "0/0")
    token = 44
    content = content_of((tmp_path / "wide.png").read_bytes())
    assert prompt.pictures == (
        ShownPicture(content=content, begin=2, rows=2, columns=3),
        ShownPicture(content=content, begin=10, rows=2, columns=3),
    )
    places = [place for place, index in enumerate(prompt.token_ids) if index == token]
    assert places == [*range(2, 8), *range(10, 16)], "the words' own token is text"
    patches = processor_of(seeing).patches(png(28 * 3, 28 * 2))
    assert patches.grid == (1, 4, 6)
    assert patches.values.shape == (24, 3 * 2 * 14 * 14)


def test_pictures_of_prompts_are_kept_once_and_read_with_their_digest(
    seeing: str, tmp_path: Path
) -> None:
    run = context(seeing, tmp_path)
    refs = [PromptRef(prompt_id=f"{epoch}/3", domain="shapes") for epoch in range(2)]
    first, second = prompts_of(run, refs).values()
    assert first.pictures == second.pictures
    store = Store.open(str(tmp_path)).child(f"{run.run_id}/{PICTURES}")
    assert store.list("") == [first.pictures[0].content]
    folder = PictureFolder(store)
    assert content_of(folder.read(first.pictures[0].content)) == first.pictures[0].content
    store.write(first.pictures[0].content, b"damaged")
    with pytest.raises(ValueError, match=r"\(7 bytes\) must be the picture that it is named after"):
        folder.read(first.pictures[0].content)


def test_a_probe_shows_its_pictures_and_survives_its_way(seeing: str, tmp_path: Path) -> None:
    import pickle

    run = context(seeing, tmp_path)
    (prompt,) = prompts_of(run, [PromptRef(prompt_id="0/3", domain="shapes")]).values()
    probe = probe_of(run, prompt, 4)
    assert probe == prompt.token_ids[: 2 + 9 + 4]
    sent = pickle.loads(pickle.dumps((probe, (1, 2))))
    assert isinstance(sent[0], PicturedProbe)
    assert [pictures_of(each) for each in sent] == [prompt.pictures, ()]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no picture", "must be a whole file of PNG"),
        (png()[:90], "must be a whole file of PNG"),
        (png(300, 1), "aspect ratio"),
        (None, r"'.*0.png' is not \(FileNotFoundError"),
    ],
)
def test_a_broken_picture_makes_its_row_unfit(
    seeing: str, tmp_path: Path, data: bytes | None, reason: str
) -> None:
    name = f"{abs(hash((data, reason)))}-0.png"
    if data is not None:
        (tmp_path / name).write_bytes(data)
    (row,) = load(tmp_path, {"images": name}).rows
    with pytest.raises(ValueError, match=reason):
        prompt_of_row(context(seeing, tmp_path), row, "0/0")


def test_a_picture_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("artifacts.pictures.MAX_PIXELS", 84 * 84 - 1)
    with pytest.raises(ValueError, match=f"at most {84 * 84 - 1} pixels, got 84 x 84"):
        opened(png())
    assert MAX_PIXELS > 4000 * 4000


def test_a_model_of_text_is_shown_no_pictures(tmp_path: Path) -> None:
    character_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    row = SHAPES.load(0).rows[0]
    with pytest.raises(ValueError, match="needs a model with a vision tower"):
        prompt_of_row(context(str(tmp_path), tmp_path), row, "0/0")
    (tmp_path / "config.json").write_text('{"image_token_id": 44, "vision_config": {}}')
    (tmp_path / PROCESSOR).write_text("{}")
    ids = ChatTokens(character_tokenizer()).chat(row.messages)
    with pytest.raises(ValueError, match="writes 0"):
        with_pictures(str(tmp_path), ids, row.pictures)


def test_a_request_has_its_pictures_within_the_prompt() -> None:
    shown = ShownPicture(content="", begin=2, rows=1, columns=2)
    request = replace(make_request(), prompt_tokens=(1, 2, 3, 3), pictures=(shown,))
    check_request(request, 1024, 64)
    with pytest.raises(ValueError, match="pictures must lie within the prompt"):
        check_request(replace(request, prompt_tokens=(1, 2, 3)), 1024, 64)


TINY_VISION: dict[str, Any] = {"preset": "tiny-vision", "cluster": {"device_kind": "cpu"}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"learner": {"lora": {"rank": 4}, "vision": "trained"}},
            "learner.vision=frozen beside an adapter.*, got learner.vision=trained",
        ),
        (
            {"learner": {"lora": {"rank": 4}, "parameters": "sharded"}},
            "learner.parameters=replicated beside an adapter, got 'sharded'",
        ),
        ({"learner": {"advantage": {"kind": "gae"}}}, "got learner.advantage.kind=gae"),
        ({"engine": {"tensor_parallel_size": 2}}, "tensor_parallel_size=1, got 2"),
    ],
)
def test_what_does_not_go_with_pictures_yet_is_refused(
    seeing: str, change: dict[str, Any], reason: str
) -> None:
    config = RunConfig.model_validate(TINY_VISION | change)
    with pytest.raises(ValueError, match=f"a model with a vision tower needs .*{reason}"):
        check_pictures(config, Path(seeing))


def test_a_tower_is_trained_where_there_is_one(seeing: str, tmp_path: Path) -> None:
    trained = RunConfig.model_validate(TINY_VISION | {"learner": {"vision": "trained"}})
    check_pictures(trained, Path(seeing))
    (tmp_path / "config.json").write_text("{}")
    check_pictures(RunConfig.model_validate(TINY_VISION), tmp_path)
    with pytest.raises(ValueError, match=r"learner\.vision=trained needs a model with a vision"):
        check_pictures(trained, tmp_path)


def test_a_judge_has_no_tower(seeing: str, tmp_path: Path) -> None:
    check_judge(tmp_path)
    with pytest.raises(ValueError, match="a judge must be a model of text alone"):
        check_judge(Path(seeing))


def test_what_is_made_of_pictures_is_kept_up_to_a_bound() -> None:
    made: list[str] = []

    def make(content: str) -> str:
        made.append(content)
        return content * 4

    kept = LatestMade(make, len, 8)
    for content in ("a", "b", "a", "c", "a", "b"):
        assert kept.of(content) == content * 4
    assert made == ["a", "b", "c", "b"]
    assert kept.of("large" * 9) == "large" * 36


def test_settings_name_no_folder_of_pictures() -> None:
    parts: list[FrozenConfig] = [RunConfig.model_validate(TINY_VISION)]
    assert "pictures" not in json.dumps([part.model_dump(mode="json") for part in parts])
