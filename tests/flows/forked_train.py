"""`rollflow train` in processes forked from one that has imported what it needs, for runs that end
before anything starts: their imports are all that takes time, some seconds of a core each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests.flows.conftest import ENDS_WITHIN_S, ROOT, Finished, train_words


class ForkedTrain:
    """Runs of a small configuration, one after the other."""

    def __init__(self, origin: ProcessPoolExecutor) -> None:
        self._origin = origin

    def run(self, root: Path, *assignments: str) -> Finished:
        """A run from beginning to end, its artifacts under root."""
        return self._origin.submit(_run, train_words(root, *assignments)).result()


@contextmanager
def forked_train(environment: Mapping[str, str]) -> Iterator[ForkedTrain]:
    """For the block, with the environment of the Prefect server's clients."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _import, (dict(environment),)) as origin:
        yield ForkedTrain(origin)


def _import(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    os.chdir(ROOT)
    import_module("flows.train")


def _run(words: Sequence[str]) -> Finished:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_train, args=(words, out, err))
        process.start()
        process.join(ENDS_WITHIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return Finished(code=process.exitcode, out=out.read_text(), err=err.read_text())


def _train(words: Sequence[str], out: Path, err: Path) -> None:
    from flows.commands.train import main

    for path, stream in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    sys.exit(main(words))
