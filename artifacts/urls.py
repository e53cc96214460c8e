"""Refuses secrets in settings that may be a URL, because such settings are stored, shown and logged
in many places.

    setting ─▶ Location, ServiceUrl, ... ─▶ an error with the field's name and where secrets belong
    a sentence, a log ─▶ without_secrets ─▶ *** in place of every URL that holds a secret
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

if TYPE_CHECKING:  # commands that only show runs spare pydantic, which takes a tenth of a second
    from pydantic import GetCoreSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema

HIDDEN = "***"
_NUM_ENCODINGS = 3  # how often a URL within a URL may have been quoted
# up to the host; a password may have been written with a slash, which no port has
_USER_INFO = re.compile(
    r"(?:^|(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*):)//"
    r"(?:([^/?#@]*(?:@[^/?#@]*)*)@|[^/?#:@\[]*:(?!\d*(?:[/?#,]|$)).*@)",
    re.IGNORECASE,
)
_BARE_USER_INFO = re.compile(r"[\w.%+~-]+:[^/@\s]+@[\w\[]")
_PARAMETER = re.compile(r"[?&;#]([\w.%-]+)=[^&;#\s]")
# schemes of which the part before @ is a name: of a database's user, of a container, of a project
_NAMED = re.compile(
    r"(postgres(ql)?|mysql|mariadb|mssql|oracle)(\+\w+)?|s?ftp|ssh|w?e?b?hdfs|smb|abfss?|wasbs?",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"sig|sas|se|sp|sv|pass|pwd?|pat|auth|authorization|bearer|cookie|code|jwt|session(id)?"
    r"|.*(token|secret|password|passwd|passphrase|passcode|signature|credentials?|hmac"
    r"|(?<!ssl)key|accesskeyid|accessid)"
)


def secret_in(text: str) -> str:
    """Describe the secret in a text that may be a URL ("parameter token"); empty without one."""
    for written in _decoded(text):
        if _has_user_info(written):
            return "user name or password"
        for name in _PARAMETER.findall(written):
            if _SECRET_NAME.fullmatch(re.sub(r"[-_.]", "", name.lower())):
                return f"parameter {name}"
    return ""


def without_secrets(text: str) -> str:
    """Replace every word of a text that holds a secret by ***."""
    return re.sub(r"[^\s'\"]+", lambda word: HIDDEN if secret_in(word[0]) else word[0], text)


def hidden(value: Any) -> Any:  # Any: parsed JSON, or what a caller gave instead
    """Replace the secrets in all texts of a value, at any depth, by ***."""
    match value:
        case str():
            return HIDDEN if secret_in(value) else without_secrets(value)
        case Mapping():
            return {hidden(name): hidden(below) for name, below in value.items()}
        case list() | tuple() | set():
            return [hidden(below) for below in value]
    return value


@dataclass(frozen=True, slots=True)
class NoSecret:
    """A field annotation that refuses a value with a secret at any depth. The error message does
    not repeat the secret."""

    cure: str  # where the secret goes instead

    def __get_pydantic_core_schema__(
        self,
        source: Any,  # Any: the annotated type
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.with_info_before_validator_function(self, handler(source))

    def __call__(self, value: Any, info: ValidationInfo) -> Any:  # Any: not validated yet
        self.check(value, info.field_name or "a URL")
        return value

    def check(self, value: Any, name: str) -> None:  # Any: likewise
        """Raise ValueError if `value`, the setting called `name`, holds a secret."""
        for found in filter(None, map(secret_in, _texts(value))):
            raise ValueError(
                f"{name} must hold no secret, which everybody would read in manifest, report, logs,"
                f" Prefect and MLflow, got one with a {found}; leave that out, and {self.cure}"
            )


STORAGE = NoSecret(
    "give it to the storage's own client by its environment variables (AWS_PROFILE,"
    " AWS_ACCESS_KEY_ID, ...; for http FSSPEC_HTTPS) or a file of ~/.config/fsspec"
)
_SERVICE = NoSecret(
    "name the environment variable or the file that has it, as token_variable or token_file"
)
TRACKING = NoSecret(
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for a server, PGPASSFILE for"
    " PostgreSQL"
)
_HUB = NoSecret("set HF_TOKEN, and HF_ENDPOINT where it is not the public hub")
NETWORK = NoSecret(
    "give elastic workers the run's token by elastic.token_file or ROLLFLOW_ELASTIC_TOKEN"
)
_ARGUMENTS = NoSecret(
    "have the code that takes it read it from a file, which episodes.hosts.readable names"
)

Location = Annotated[str, STORAGE]  # a path, or a URL that fsspec opens
ServiceUrl = Annotated[str, _SERVICE]  # of a service over HTTP
TrackingUri = Annotated[str, TRACKING]  # MLflow's server or database
Repository = Annotated[str, _HUB]  # of the Hugging Face hub
NetworkAddress = Annotated[str, NETWORK]  # of a machine, or a process on one
Arguments = Annotated[Mapping[str, Any], _ARGUMENTS]  # Any: of a user's own code


def _decoded(text: str) -> Iterator[str]:
    """The text as written, then URL-unquoted once, twice, ... until nothing changes."""
    for _ in range(_NUM_ENCODINGS):
        yield text
        text, before = unquote(text), text
        if text == before:
            return
    yield text


def _has_user_info(text: str) -> bool:
    if _BARE_USER_INFO.match(text):
        return True
    for scheme, info in _USER_INFO.findall(text):
        is_name = ":" not in info and info != "" and _NAMED.fullmatch(scheme)
        if not is_name and scheme.lower() != "github":  # github://owner:repository@branch
            return True
    return False


def _texts(value: Any) -> Iterator[str]:  # Any: not validated yet
    match value:
        case str():
            yield value
        case Mapping():
            for name, below in value.items():
                yield from _texts((name, below))
        case Sequence() if not isinstance(value, bytes):
            for below in value:
                yield from _texts(below)
