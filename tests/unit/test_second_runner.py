"""The engine core over vLLM's second model runner, as on GPUs, without one: the scheduler computes
a batch ahead, and every running request keeps a slot. Loads in all ways, aborts and preemptions
change no draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_runner import STOP, FakeEngine, drawn_at, make_vllm_config

from artifacts.records import Generated, Request, Running, WeightsRef
from tasks.engines.vllm import core, siblings
from tasks.engines.vllm.core import VllmCore

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed.reduce_op.*:FutureWarning")

PROBES = ((3, 4, 5), (9,) * 20)
MOST = 12  # responses that run together


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:  # Any: vLLM's
    return make_vllm_config(tmp_path_factory.mktemp("shape"))


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings share no started block; without a tokenizer a text says how long it is."""
    monkeypatch.setattr(siblings, "on_cpu", lambda: False)
    decoder = SimpleNamespace(decode=lambda tokens: str(len(tokens)))
    monkeypatch.setattr(core, "ChatTokens", lambda tokenizer, stop_ids: decoder)


def make_core(vllm_config: Any, num_blocks: int = 120) -> VllmCore:
    engine: Any = FakeEngine(vllm_config, num_blocks)
    return VllmCore(engine, None, (STOP,), "engine-0", version=0)


def make_requests(number: int) -> list[Request]:
    return [
        Request(
            prompt_id=f"0/{index // 2}", index=index % 2,
            prompt_tokens=tuple(8 + (index // 2 + place) % 50 for place in range(5 + index)),
            max_new_tokens=60, temperature=1.0, top_p=1.0, seed=1000 + index,
        )
        for index in range(number)
    ]  # fmt: skip


def expected(request: Request) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The response's tokens and log-probabilities, wherever and however it is generated."""
    drawn = []
    for position in range(len(request.prompt_tokens), 128):
        drawn.append(drawn_at(request.seed, position))
        if drawn[-1][0] == STOP or len(drawn) == request.max_new_tokens:
            break
    return tuple(token for token, _ in drawn), tuple(logprob for _, logprob in drawn)


def finish(replica: VllmCore, done: list[Generated], steps: int = 1000) -> list[Generated]:
    for _ in range(steps):
        if not replica.busy:
            break
        done += [news for news in replica.step() if isinstance(news, Generated)]
    return done


def check(requests: list[Request], done: list[Generated]) -> None:
    found = {each.response_id: (each.token_ids, each.logprobs) for each in done}
    assert found == {request.response_id: expected(request) for request in requests}
    for each in done:
        assert sum(span.num_tokens for span in each.versions) == len(each.token_ids)


def load(replica: VllmCore, version: int, running: Running) -> list[Generated]:
    """Load as `VllmEngine.load_weights` does."""
    done = replica.settle() if running is Running.KEEP else []
    if running is Running.DRAIN:
        replica.hold_new()
        finish(replica, done)
    weights = WeightsRef(version=version, path="v", digest="d")
    assert replica.load(weights, PROBES, running).version == version
    return done


@pytest.mark.parametrize("running", [Running.INTERRUPT, Running.KEEP, Running.DRAIN])
@pytest.mark.parametrize("num_blocks", [40, 120])
def test_loads_in_mid_generation_change_no_draw(
    vllm_config: Any, num_blocks: int, running: Running
) -> None:
    replica = make_core(vllm_config, num_blocks)
    requests = make_requests(16)
    replica.add(requests)
    done: list[Generated] = []
    for version in range(1, 8):
        finish(replica, done, steps=4)
        done += load(replica, version, running)
    finish(replica, done)
    check(requests, done)


@pytest.mark.parametrize("running", [Running.INTERRUPT, Running.KEEP])
def test_tokens_have_the_version_that_sampled_them(vllm_config: Any, running: Running) -> None:
    """A batch that was computed ahead of a load belongs to the version before, or is drawn anew."""
    replica = make_core(vllm_config)
    (request,) = make_requests(1)
    replica.add([request])
    done = finish(replica, [], steps=6)
    assert len(replica._scheduler.requests) == 1
    done += load(replica, 1, running)
    num_old = sum(live.num_tokens for live in replica._live.values())
    finish(replica, done)
    check([request], done)
    assert [(span.version, span.num_tokens) for span in done[0].versions] == [
        (0, num_old), (1, len(done[0].token_ids) - num_old)
    ]  # fmt: skip


def test_probes_find_slots_beside_a_full_engine(vllm_config: Any) -> None:
    replica = make_core(vllm_config)
    requests = make_requests(MOST + 3)
    replica.add(requests)
    done = finish(replica, [], steps=8)
    assert len(replica._scheduler.running) >= MOST - len(done)
    done += load(replica, 1, Running.KEEP)
    finish(replica, done)
    check(requests, done)


def test_an_abort_with_a_batch_ahead_returns_the_tokens_so_far_and_others_go_on(
    vllm_config: Any,
) -> None:
    replica = make_core(vllm_config)
    requests = make_requests(8)
    replica.add(requests)
    done = finish(replica, [], steps=7)
    over = {each.response_id for each in done}
    wanted = [each for each in requests[:4] if each.response_id not in over]
    partial = replica.abort([request.response_id for request in wanted])
    for request, stopped in zip(wanted, partial, strict=True):
        tokens, logprobs = expected(request)
        length = len(stopped.token_ids)
        assert 0 < length < len(tokens)
        assert (stopped.token_ids, stopped.logprobs) == (tokens[:length], logprobs[:length])
    finish(replica, done)
    check([request for request in requests if request not in wanted], done)


def test_a_dropped_batch_says_nothing_of_what_comes_after(vllm_config: Any) -> None:
    replica = make_core(vllm_config)
    requests = make_requests(8)
    replica.add(requests)
    finish(replica, [], steps=7)
    load(replica, 1, Running.DROP)
    replica.add(requests)
    check(requests, finish(replica, []))
