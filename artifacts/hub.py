"""Fetches files of a repository on the Hugging Face hub through the hub's own client, whose cache
(HF_HOME), offline switch (HF_HUB_OFFLINE), token and endpoint are honoured. Every failure is a
ValueError of one sentence with the repository, the cause and the cure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from artifacts.private_files import users_own_files
from artifacts.urls import secret_in, without_secrets

RepositoryKind = Literal["model", "dataset"]

REPOSITORY_PATTERN = r"^[\w.-]+(/[\w.-]+)?$"


def fetch(
    kind: RepositoryKind,
    repository: str,
    revision: str,
    patterns: Sequence[str],
    ignored: Sequence[str] = (),
) -> Path:
    """Fetch a revision's files that match one of `patterns` and none of `ignored`; returns their
    folder in the cache, whose name is the commit. If the hub cannot be reached, files in the cache
    suffice. Raises ValueError."""
    # imported here: the hub's client takes half a second to import
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        with users_own_files():
            folder = snapshot_download(
                repository,
                repo_type=kind,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=list(ignored),
            )
        return Path(folder)
    except Exception as error:
        sentence = _sentence(error, kind, repository, revision)
        raise ValueError(without_secrets(sentence)) from (None if secret_in(str(error)) else error)


def _sentence(error: Exception, kind: RepositoryKind, repository: str, revision: str) -> str:
    """A sentence with the cause of a failed fetch, and its cure."""
    from huggingface_hub import constants, errors

    name = f"{kind} {repository!r}"
    place = f"the hub at {constants.ENDPOINT}"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated on {place}; accept its terms there, then run `hf auth login` or set"
            " HF_TOKEN"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{name} must be a repository of {place}, which knows none of that name, or keeps it"
            " private; correct the name, or run `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{name} must have the revision {revision!r}, {place} knows none; name a branch, a tag"
            " or a whole commit"
        )
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = next(iter(str(root).splitlines()), type(root).__name__)
        is_offline = constants.HF_HUB_OFFLINE
        cause = "HF_HUB_OFFLINE is set" if is_offline else f"{place} does not answer ({reason})"
        return (
            f"{name} at revision {revision!r} must be in the cache {constants.HF_HUB_CACHE} where"
            f" the hub is not to be had, and is not, or not whole: {cause}; connect, or download"
            " it on another machine and copy the cache"
        )
    return f"{name} could not be fetched from {place} ({error}); try again"
