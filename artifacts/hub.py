"""Fetches and sends files of a repository on the Hugging Face hub through the hub's own client,
whose cache (HF_HOME), offline switch (HF_HUB_OFFLINE), token and endpoint are honoured. Every
failure is a ValueError of one sentence with the repository, the cause and the cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    with _explained(kind, repository, revision), users_own_files():
        folder = snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(ignored),
        )
    return Path(folder)


def check_there(kind: RepositoryKind, repository: str, revision: str, file: str) -> None:
    """Ask the hub for the head of a small file of a repository, unless the file is in the cache;
    nothing is fetched. Raises ValueError as `fetch` does, within the client's own time limit
    (HF_HUB_ETAG_TIMEOUT)."""
    from huggingface_hub import (
        constants,
        errors,
        get_hf_file_metadata,
        hf_hub_url,
        try_to_load_from_cache,
    )

    cached = try_to_load_from_cache(repository, file, repo_type=kind, revision=revision)
    if isinstance(cached, str):
        return
    with (
        _explained(kind, repository, revision),
        suppress(errors.RemoteEntryNotFoundError),  # a data set may have no card
    ):
        url = hf_hub_url(repository, file, repo_type=kind, revision=revision)
        get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)


@contextmanager
def _explained(kind: RepositoryKind, repository: str, revision: str) -> Iterator[None]:
    """Turn what the hub's client raises into a ValueError with cause and cure."""
    try:
        yield
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
    is_unreached = isinstance(error, errors.HTTPError) and not hasattr(error, "response")
    if is_unreached or isinstance(
        error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled
    ):
        reason = _reason(error)
        is_offline = constants.HF_HUB_OFFLINE
        cause = "HF_HUB_OFFLINE is set" if is_offline else f"{place} does not answer ({reason})"
        folder = f"{kind}s--{repository.replace('/', '--')}"
        what = repository if kind == "model" else f"--repo-type dataset {repository}"
        return (
            f"{name} at revision {revision!r} must be in the cache {constants.HF_HUB_CACHE} where"
            f" the hub is not to be had, and is not, or not whole: {cause}; connect, or run `hf"
            f" download {what}` on another machine and copy the folder {folder} of its cache there"
        )
    return f"{name} could not be fetched from {place} ({error}); try again"


def _reason(error: BaseException) -> str:
    """The first line of the error that caused this one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__)


def repository_url(repository: str) -> str:
    """The address of a model's repository on the hub."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repository}"


def send_model(
    repository: str, files: Mapping[str, Path | bytes], message: str, *, is_private: bool
) -> str:
    """Send files, by name in the repository, in one commit to a model's repository, which is made
    if it is not there; returns its address. is_private: of a repository that is made. A name
    without an owner is the user's own. Raises ValueError, without a login of the hub's, too."""
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise ValueError(
            "a model is sent with a login of the hub, there is none; run `hf auth login` or set"
            " HF_TOKEN, with a token that may write"
        )
    hub = HfApi(library_name="rollflow")
    try:
        address = hub.create_repo(repository, private=is_private, exist_ok=True)
        added = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
            for name, data in files.items()
        ]
        hub.create_commit(address.repo_id, added, commit_message=message)
        return str(address)
    except Exception as error:
        sentence = _sending_sentence(error, repository)
        raise ValueError(without_secrets(sentence)) from (None if secret_in(str(error)) else error)


def _sending_sentence(error: Exception, repository: str) -> str:
    """A sentence with the cause of a model that could not be sent, and its cure."""
    from huggingface_hub import constants, errors

    name, place = f"model {repository!r}", f"the hub at {constants.ENDPOINT}"
    if isinstance(error, errors.HFValidationError):
        return f"NAME must be OWNER/NAME on the hub, got {repository!r} ({_reason(error)}); mend it"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        cures = {
            401: "it does not know the token; run `hf auth login` again",
            403: "the token may not write there; use one that may, or a name of your own",
            404: "there is no such owner, or the token may not write there; correct the name",
        }
        cure = cures.get(status, f"{_reason(error)}; try again")
        return f"{name} was refused by {place} ({status}): {cure}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name} cannot be sent to {place}: HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, errors.HTTPError | OSError):
        return (
            f"{name} cannot be sent to {place}, which does not answer ({_reason(error)}); connect"
            " and try again: what is there is not sent twice"
        )
    return f"{name} could not be sent to {place} ({_reason(error)}); try again"
