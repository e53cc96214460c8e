"""`rollflow worker`: the Dask command that it becomes, its environment, and what it refuses."""

from __future__ import annotations

import os

import pytest

from flows.commands.worker import dask_command, environment_of, main, parser, unique_name
from tasks.elastic.worker_card import RESOURCE, TOKEN_VARIABLE
from tasks.elastic.worker_process import dask_setup

ADDRESS = "tcp://host:8786"
SAFE = "tls://host:8786"


def test_it_becomes_a_worker_without_a_nanny_and_with_the_preload() -> None:
    words = [ADDRESS, "--name", "spot-1", "--worker-port", "9000", "--drain-s", "0", "--cores", "0"]
    command = " ".join(dask_command(parser().parse_args(words)))
    assert command.startswith(f"dask worker {ADDRESS} --name spot-1 --no-nanny --nworkers 1")
    assert f"--resources {RESOURCE}=1 --worker-port 9000 --preload" in command
    assert command.endswith(
        "--preload tasks.elastic.worker_process --price-class spot --drain-s 0.0 --lease-s 20.0"
        " --grace-s 60.0 --cores 0"
    )


def test_the_preload_takes_what_the_command_gives_it() -> None:
    words = [ADDRESS, "--cores", "0", "--token-file", "f", "--spot-notice", "n", "--parent", "1"]
    command = dask_command(parser().parse_args(words))
    given = list(command[command.index("--preload") + 2 :])
    context = dask_setup.make_context("dask_setup", given)
    assert context.params == {
        "price_class": "spot",
        "token_file": "f",
        "drain_s": 30.0,
        "lease_s": 20.0,
        "grace_s": 60.0,
        "cores": "0",
        "spot_notice": "n",
        "parent": 1,
    }


def test_an_elastic_worker_has_the_environment_that_a_nanny_would_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    environment = environment_of("0-1")
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["MALLOC_MMAP_MAX_"] == "0"
    assert environment["DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL"] == "2s"
    assert environment_of("")["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert environment_of("")["OMP_NUM_THREADS"] == "1"


def test_the_file_of_the_run_is_authority_certificate_and_key() -> None:
    words = [SAFE, "--certificate", "run.pem"]
    command = " ".join(dask_command(parser().parse_args(words)))
    assert "--tls-ca-file run.pem --tls-cert run.pem --tls-key run.pem --preload" in command


def test_an_elastic_worker_listens_where_it_reaches_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tcp://127.0.0.1:8786", "--print"]) == 0
    assert "--interface lo " in capsys.readouterr().out
    assert main(["tcp://127.0.0.1:8786", "--host", "127.0.0.2", "--print"]) == 0
    printed = capsys.readouterr().out
    assert "--host 127.0.0.2" in printed
    assert "--interface" not in printed


def test_print_shows_the_command_and_no_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a secret")
    assert main([ADDRESS, "--name", "mine", "--print"]) == 0
    said = capsys.readouterr().out
    assert f"dask worker {ADDRESS} --name mine" in said.splitlines()[-1]
    assert "OMP_NUM_THREADS=" in said
    assert "a secret" not in said


def test_an_elastic_worker_without_a_name_has_one_that_is_its_own() -> None:
    assert unique_name().startswith("elastic-worker-")
    assert unique_name().endswith(f"-{os.getpid()}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["host:8786"], "must begin with tcp:// or tls://, got 'host:8786'; write tcp://host:8786"),
        ([ADDRESS, "--name", "7"], "--name must begin with a letter"),
        ([ADDRESS, "--cores", "x"], "device ranges must be numbers like 0-3,6, got 'x'"),
        ([ADDRESS, "--lease-s", "0"], "--lease-s and --grace-s must be > 0 and --drain-s >= 0"),
        ([ADDRESS, "--tls-cert", "some.pem"], "go together; give all of them"),
        ([ADDRESS, "--certificate", "some.pem"], "must begin with tls:// beside a certificate"),
        ([SAFE, "--certificate", "some.pem"], "--certificate must be PEM files that can be read"),
        ([SAFE, "--certificate", __file__], "--certificate must be PEM files that can be read"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
