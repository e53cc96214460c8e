"""python -m tests.flows.plain_vllm MODEL ADAPTER FILE: log-probabilities by vLLM as its
documentation has it, with an adapter from its folder, in fp32, of the token sequences in a JSON
file, in whose place they are written. Nothing of Rollflow is imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(model: str, adapter: str, file: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    # its CPU backend computes no log-probabilities of prompts where the head may have an adapter
    targets = json.loads((Path(adapter) / "adapter_config.json").read_text())["target_modules"]
    llm = LLM(
        model, enable_lora=True, max_lora_rank=8, lora_target_modules=targets, dtype="float32",
        enforce_eager=True, max_model_len=256, kv_cache_memory_bytes=2**27,
    )  # fmt: skip
    asked = json.loads(file.read_text())
    answers = llm.generate(
        [{"prompt_token_ids": tokens} for tokens in asked],
        SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0),
        lora_request=LoRARequest("sums", 1, adapter),
    )
    found = [
        [answer.prompt_logprobs[place][tokens[place]].logprob for place in range(1, len(tokens))]
        for answer, tokens in zip(answers, asked, strict=True)
    ]
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
