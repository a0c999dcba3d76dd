#!/usr/bin/env python3
"""Answer the kit with vLLM in this process: python drivers/run_vllm.py KIT OUT.json

On a CPU as on a GPU; --dtype float32 needs an attention backend that has it, which FlashAttention has not.
"""

import gc
import os

import answering

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
LIKELIEST = 20


def prepare(arguments):
    import torch
    import vllm

    return {"release": vllm.__version__, "versions": {"torch": torch.__version__}}


def answer(path, prompts, context, arguments):
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, logprobs=LIKELIEST, detokenize=False)
    model = LLM(
        model=path, dtype=arguments.dtype, enforce_eager=True, max_model_len=context, max_num_batched_tokens=context,
        max_num_seqs=1, enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
        gpu_memory_utilization=0.5,
    )  # fmt: skip
    found = []
    try:
        for ids in prompts:
            done = model.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)[0]
            scores = [given[token].logprob for token, given in zip(ids[1:], done.prompt_logprobs[1:], strict=True)]
            likeliest = {token: one.logprob for token, one in done.outputs[0].logprobs[0].items()}
            found.append({"scores": [None, *scores], "next": likeliest, "ids": list(done.prompt_token_ids)})
    finally:
        del model
        gc.collect()
        cleanup_dist_env_and_memory()
    return found


if __name__ == "__main__":
    answering.main("vLLM", "hf", prepare, answer)
