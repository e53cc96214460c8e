"""Loads rows of a data set on the Hugging Face hub: Parquet, CSV or JSON lines, no script.
The data set's card says which files belong to a split; without a card, the files' names do.

card (README.md) -> commit, patterns of the split's files -> files in the cache -> file_rows
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from artifacts.datasets.file_rows import (
    PACKED,
    SUFFIXES,
    Record,
    format_by_suffix,
    read_records,
    read_table,
    read_trained,
)
from artifacts.datasets.row_mapping import MappedConfig
from artifacts.datasets.row_table import split
from artifacts.datasets.rows import Dataset
from artifacts.hub import REPOSITORY_PATTERN, check_there, fetch
from artifacts.urls import Repository

CARD = "README.md"
DEFAULT = "default"  # the configuration's name in a data set with only one


class HubRows(MappedConfig):
    """The settings of rows on the hub, whether a user names the data set or a kind does."""

    repository: Repository = Field(
        ..., pattern=REPOSITORY_PATTERN, description="The data set, such as zwhe99/DeepMath-103K."
    )
    revision: str = Field(
        "main",
        min_length=1,
        description="Branch, tag or commit; a run records the commit and keeps to it.",
    )
    name: str = Field(
        DEFAULT, min_length=1, description="Which of the data set's configurations, if several."
    )
    split: str = Field("train", min_length=1, description="The split to train on.")
    heldout_split: str = Field(
        "", description="The split to evaluate on; empty: heldout_fraction of `split`."
    )
    heldout_fraction: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of the distinct questions kept for evaluation, without heldout_split.",
    )

    def check_there(self) -> None:
        """Raises ValueError if the hub has no such data set, does not answer or may not give it."""
        check_there("dataset", self.repository, self.revision, CARD)

    def pinned(self) -> Self:
        """Replace the revision by the commit that it names now. Raises ValueError if there is no
        such data set or revision."""
        commit = fetch("dataset", self.repository, self.revision, [CARD]).name
        return self.model_copy(update={"revision": commit})

    def load(self, seed: int) -> Dataset:
        """Load the split's rows in their order, rows of held-out questions apart. Raises ValueError
        if the data set cannot be fetched or has an unusable row."""
        commit = self.pinned().revision
        table, heldout = read_trained(self, *_split(self, commit, self.split)), None
        if self.heldout_split:
            heldout = read_table(self, *_split(self, commit, self.heldout_split))
        return split("hub", table, heldout, self.heldout_fraction, seed)


class HubRowsConfig(HubRows):
    """Rows of a data set on the Hugging Face hub."""

    kind: Literal["hub"] = Field(
        "hub", description="Chooses rows of a data set on the Hugging Face hub."
    )


def _split(config: HubRows, commit: str, split: str) -> tuple[Iterator[Record], str]:
    """The records of a split, and the split's name for error messages."""
    source = f"{config.repository}@{commit[:12]}/{config.name}/{split}"
    patterns = _patterns(config, fetch("dataset", config.repository, commit, [CARD]), split)
    folder = fetch("dataset", config.repository, commit, patterns)
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    globs = [pattern.replace("**", "*") for pattern in patterns]
    files = [
        file
        for file in found
        if any(fnmatch.fnmatchcase(file.relative_to(folder).as_posix(), glob) for glob in globs)
    ]
    if not files:
        raise ValueError(
            f"data set {source} must have Parquet, CSV or JSON-lines files, none matches"
            f" {', '.join(patterns[:3])}; name another split or configuration, or load them by"
            " kind files"
        )

    def records() -> Iterator[Record]:
        import fsspec

        for file in files:
            name, format_ = f"{source}: {file.relative_to(folder)}", format_by_suffix(file.name)
            with fsspec.open(str(file), "rb", compression="infer") as opened:
                yield from read_records(opened, format_, sorted(config.paths), name)

    return records(), source


def _patterns(config: HubRows, folder: Path, split: str) -> list[str]:
    """Glob patterns of the split's files, from the card or else by the usual names."""
    card = _card(folder / CARD)
    listed = card.get("configs")
    if not listed:
        return _usual(config.name, split)
    by_name = {str(entry.get("config_name", DEFAULT)): entry for entry in listed}
    if config.name not in by_name:
        raise ValueError(
            f"task.name must be a configuration of {config.repository}"
            f" ({', '.join(by_name)}), got {config.name!r}; choose one"
        )
    files = by_name[config.name].get("data_files")
    if files is None:
        return _usual(config.name, split)
    entries = files if isinstance(files, list) else [files]
    loose = [entry for entry in entries if isinstance(entry, str)]
    by_split = {"train": loose} if loose else {}  # plain paths belong to `train`
    for entry in entries:
        if isinstance(entry, dict):
            path = entry["path"]
            by_split[str(entry["split"])] = path if isinstance(path, list) else [path]
    if split not in by_split:
        raise ValueError(
            f"a split of {config.repository} must be one of {', '.join(by_split)}, got {split!r};"
            " choose one"
        )
    return by_split[split]


def _card(path: Path) -> Mapping[str, Any]:  # Any: YAML
    """The YAML header of a card; empty if the card or its header is missing."""
    if not path.is_file():
        return {}
    head = path.read_text(encoding="utf-8").split("---\n")
    if len(head) < 3 or head[0].strip():
        return {}
    import yaml  # here, because settings of the hub are read by every command

    found = yaml.safe_load(head[1])
    return found if isinstance(found, dict) else {}


def _usual(name: str, split: str) -> list[str]:
    """Patterns for the usual names of a split's files."""
    folders = ("", "data/") if name == DEFAULT else (f"{name}/", f"data/{name}/")
    endings = [suffix + packed for suffix in SUFFIXES for packed in ("", *PACKED)]
    return [
        f"{folder}{split}{between}{ending}"
        for folder in folders
        for ending in endings
        for between in ("", "-*", "/*")
    ]
