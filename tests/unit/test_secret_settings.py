"""No setting that may be a URL holds a secret, and no refusal repeats one."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from prefect.exceptions import ParameterTypeError
from pydantic import BaseModel, TypeAdapter, ValidationError

from artifacts.store import Store
from artifacts.urls import HIDDEN, hidden, secret_in, without_secrets
from flows.commands import compare, episodes, runs, worker, workers
from flows.config.run_config import RunConfig
from flows.config.sentence import sentence
from flows.config.settings_file import kept_config
from flows.elastic_worker import ElasticWorkerConfig, elastic_worker
from flows.train import train
from tasks.rewards.service import ServiceConfig

SECRET = "s3cret"
MAY_BE_URLS = re.compile(r"ur[li]|path|root|address|endpoint|repositor|host|file|dir|cache|kwargs")
# of these the whole value is something else: a list of devices, tokens of text
EXCEPT: frozenset[str] = frozenset()

REFUSED = (
    f"https://user:{SECRET}@host/x", f"HTTPS://USER:{SECRET}@HOST/x", f"https://{SECRET}@host/x",
    f"https://:{SECRET}@host", f"https://user:{SECRET}/{SECRET}@host", f"//me:{SECRET}@host/x",
    f"https://user:{SECRET}#{SECRET}@host/x", f"https://user:a@{SECRET}@host",
    f"https%3A%2F%2Fuser%3A{SECRET}%40host%2Fx", f"https://user%3A{SECRET}%40host/x",
    f"https://user:a {SECRET}@host", f"tcp://me:{SECRET}@host:8786", f"me:{SECRET}@host/x",
    f"simplecache::https://user:{SECRET}@host/x.jsonl", f"filecache::https://me:{SECRET}@host",
    f"zip://a.csv::https://me:{SECRET}@host/x.zip", f"hf://me:{SECRET}@datasets/a/b",
    f"postgresql+psycopg2://me:{SECRET}@db/mlflow", f"postgresql://db/x?user=me&password={SECRET}",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3DODBC%3BPWD%3D{SECRET}", f"s3://key:{SECRET}@bucket/x",
    f"s3://b/x?X-Amz-Signature={SECRET}", f"https://h/x?a=1&X-Amz-Credential={SECRET}",
    f"https://h/x?X-Amz-Security-Token={SECRET}", f"https://h/x?X-Goog-Signature={SECRET}",
    f"https://h/x?AWSAccessKeyId={SECRET}", f"https://h/x?Signature={SECRET}",
    f"https://h/x?sig={SECRET}", f"https://h/x?sv=2024-01-01&se={SECRET}&sp=r",
    f"https://h/x?TOKEN={SECRET}", f"https://h/x?access_token={SECRET}", f"https://h?key={SECRET}",
    f"https://h/x?api-key={SECRET}", f"https://h/x?client_secret={SECRET}",
    f"https://h/x?a=1;password={SECRET}", f"https://h/x#access_token={SECRET}",
    f"https://h/x%3Ftoken%3D{SECRET}", f"https://h/x?t%6Fken={SECRET}", f"https://h;jwt={SECRET}",
)  # fmt: skip
TAKEN = (
    "runs", "/data/a@b/c.jsonl", "data/part-??.jsonl", "data/year=*/key=3/x.parquet", "C:\\x",
    "s3://bucket/prefix", "s3://bucket/a:b/x@y", "simplecache::s3://b/x", "memory://runs",
    "zip://*.csv::/data/a.zip", "file:///a/b", "hf://datasets/a/b@main/x.jsonl",
    "abfs://container@account.dfs.core.windows.net/path", "github://org:repo@main/x.jsonl",
    "postgresql://mlflow@db/mlflow", "postgresql://db/x?sslkey=/a.pem&sslmode=require",
    "sftp://alice@host/x", "sqlite:////tmp/a/mlflow.db", "package.module:function",
    "path/to/file.py:function", "tcp://10.0.0.1:8786", "tcp://[::1]:8786", "http://[fe80::1]:80/x",
    "https://host:8080/users/@me", "https://h/x?max_tokens=3&tokenizer=x&domain=a", "mailto@x",
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_every_spelling_of_a_secret_is_refused_and_hidden(text: str) -> None:
    assert secret_in(text)
    assert SECRET not in f"{hidden([{'a': text}])}"
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"task": {"kind": "files", "path": text}})
    assert "task.path: path must hold no secret" in sentence(caught.value)
    assert SECRET not in f"{sentence(caught.value)} {caught.value} {caught.value.errors()}"


@pytest.mark.parametrize("text", TAKEN)
def test_what_holds_no_secret_is_taken_as_it_is(text: str) -> None:
    assert not secret_in(text)
    assert without_secrets(f"{text} is not there") == f"{text} is not there"


Place = tuple[object, ...]


def fields(model: type[BaseModel], before: Place = ()) -> Iterator[tuple[Place, Any, list[object]]]:
    """Every field below a model: its place as values are nested, its type, all its metadata."""
    for name, field in model.model_fields.items():
        yield (*before, name), field.annotation, [*field.metadata]
        for below, kind in nested(field.annotation):
            yield from fields(below, (*before, name, *kind))


def nested(annotation: Any, way: Place = ()) -> Iterator[tuple[type[BaseModel], Place]]:
    """Models within a type, each with the steps from a value of the type to the model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        yield annotation, (*way, *([{"kind": kind.default}] if kind else []))
        return
    step: Place = {"Mapping": ("*",), "tuple": (0,)}.get(
        getattr(getattr(annotation, "__origin__", None), "__name__", ""), ()
    )
    for argument in get_args(annotation):
        yield from nested(argument, (*way, *step))


def value_at(place: Place, value: object) -> Any:
    """Nested values with one at a place."""
    for step in reversed(place):
        match step:
            case str():
                value = {step: value}
            case int():
                value = [value]
            case dict():
                assert isinstance(value, dict)
                value = step | value
    return value


def named(place: Place) -> str:
    return ".".join(step if isinstance(step, str) else str(step) for step in place)


ALL = {named(place): (place, kind, data) for place, kind, data in fields(RunConfig)}


def guards(annotation: Any, metadata: list[object]) -> bool:
    """Whether a field's type refuses secrets, itself or in its elements."""
    return "NoSecret" in f"{metadata}{annotation}"


def test_every_field_that_may_be_a_url_has_the_type_of_one() -> None:
    texts = {
        name
        for name, (place, kind, _) in ALL.items()
        if MAY_BE_URLS.search(str(place[-1])) and "str" in str(kind) and not list(nested(kind))
    }
    assert len(texts) > 20
    open_ones = {name for name in texts if not guards(*ALL[name][1:])}
    assert {name.rpartition(".")[2] for name in open_ones} == EXCEPT, sorted(open_ones)


@pytest.mark.parametrize("name", [name for name, field in ALL.items() if guards(*field[1:])])
def test_a_password_in_any_field_is_refused_and_told_nowhere(name: str) -> None:
    place, kind, _ = ALL[name]
    url: object = REFUSED[0]
    if "Mapping" in str(kind):
        url = {"a": {"b": [url]}}
    elif "tuple" in str(kind):
        url = [url]
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(value_at(place, url))
    told = sentence(caught.value)
    assert f"{place[-1]} must hold no secret" in told
    assert "leave that out, and " in told
    assert SECRET not in f"{told} {caught.value} {caught.value!r} {caught.value.errors()}"


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"kind": REFUSED[0]}}, {"nothing": REFUSED[0]}, {REFUSED[0]: 1},
        {"num_steps": REFUSED[0]}, {"task": REFUSED[0]}, {"preset": REFUSED[0]},
        {"run_name": REFUSED[0]}, {"prices": {"classes": {REFUSED[0]: "x"}}},
        {"rewards": {REFUSED[0]: {"kind": "service", "url": REFUSED[0]}}},
    ],
)  # fmt: skip
def test_other_faults_do_not_repeat_a_secret(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(given)
    assert SECRET not in f"{sentence(caught.value)} {caught.value} {caught.value.errors()}"


def test_what_a_deployment_is_refused_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    for flow, config in (
        (train, {"rewards": {"*": {"kind": "service", "url": REFUSED[0]}}}),
        (elastic_worker, {"address": f"tcp://me:{SECRET}@host:8786"}),
    ):
        with (
            caplog.at_level(logging.DEBUG, logger="prefect"),
            pytest.raises(ParameterTypeError) as caught,
        ):
            flow.validate_parameters({"config": config})
        assert "must hold no secret" in str(caught.value)
        assert SECRET not in str(caught.value)
    assert HIDDEN in caplog.text
    assert SECRET not in caplog.text


def test_a_kept_run_with_a_secret_is_read_only_once_its_manifest_is_mended() -> None:
    kept = RunConfig(preset="tiny").model_dump(mode="json")  # type: ignore[call-arg]
    kept["rewards"] = {"*": ServiceConfig(url="http://host").model_dump() | {"url": REFUSED[0]}}
    with pytest.raises(ValueError, match="must hold no secret") as caught:
        kept_config(kept)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        lambda: worker.main([f"tcp://me:{SECRET}@host:8786"]),
        lambda: worker.main(["tcp://host:8786", "--spot-notice", REFUSED[0]]),
        lambda: workers.main([f"tcp://me:{SECRET}@host:8786"]),
        lambda: runs.main([REFUSED[0]]),
        lambda: compare.main(["a", "b", "--tracking-uri", REFUSED[0]]),
        lambda: episodes.main(["x", "--root", REFUSED[0]]),
        lambda: episodes.main([REFUSED[0]]),
    ],
)
def test_commands_refuse_addresses_with_a_password(
    command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 2
    shown = capsys.readouterr()
    assert "must hold no secret" in shown.err
    assert SECRET not in shown.out + shown.err


def test_a_store_is_opened_at_no_url_with_a_secret() -> None:
    with pytest.raises(ValueError, match="artifact_root must hold no secret"):
        Store.open(REFUSED[0])


def test_an_elastic_worker_as_a_flow_refuses_secrets_in_every_text() -> None:
    for name in ("spot_notice", "token_file", "local_directory", "tls_key"):
        with pytest.raises(ValidationError, match=f"{name} must hold no secret"):
            TypeAdapter(ElasticWorkerConfig).validate_python(
                {"address": "tcp://host:1", name: REFUSED[0]}
            )
