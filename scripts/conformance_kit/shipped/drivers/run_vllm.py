#!/usr/bin/env python3
"""Answer the kit with vLLM in this process: python drivers/run_vllm.py KIT OUT.json

On a CPU as on a GPU; --dtype float32 needs an attention backend that has it, which FlashAttention has not.
"""

import gc
import importlib.util
import os

import answering

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
LIKELIEST = 20
# By a piece of an error: why vLLM cannot compute a case here, which says nothing about its tables.
UNSUPPORTED = {
    "does not recognize this architecture": "this release has no class for the model type",
    "are not supported for now": "this release has no class for the model type",
    "Sparse Attention is not supported on CPU": "sparse attention needs a GPU",
    "CPU GDN attention requires BF16": "on a CPU, the gated delta rule needs bfloat16",
    "Unsupported head_dim": "its kernels need the published head size",
}


def prepare(arguments):
    import torch
    import vllm

    return {"release": vllm.__version__, "versions": {"torch": torch.__version__}}


def answer(job, arguments):
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    try:
        model = LLM(
            model=job["path"], dtype=arguments.dtype, enforce_eager=True, max_model_len=job["context"],
            max_num_batched_tokens=job["together"] * job["context"], max_num_seqs=job["together"],
            enable_prefix_caching=job["share"], skip_tokenizer_init=True, disable_log_stats=True,
            gpu_memory_utilization=0.5,
        )  # fmt: skip
    except Exception as error:
        if why := _unsupported(str(error)):
            raise answering.Unsupported(why) from error
        raise
    given = {}
    try:
        for rows in answering.steps(job):
            given.update(_batch(model, job["prompts"], rows))
    finally:
        del model
        gc.collect()
        cleanup_dist_env_and_memory()
    return answering.in_order(given)


def _unsupported(message):
    """Return why the engine cannot compute a case, or None."""
    if "failed to be inspected" in message and importlib.util.find_spec("torchvision") is None:
        return "the class imports torchvision, which is not installed"
    return next((why for words, why in UNSUPPORTED.items() if words in message), None)


def _batch(model, prompts, rows):
    """Return the answers to a batch by prompt.

    vLLM takes the kept tokens from its cache of prefixes. It does not read that cache if it returns scores of a prompt, so
    later turns have only next tokens.
    """
    from vllm import SamplingParams

    first = rows[0].kept == 0
    scored = {"prompt_logprobs": 0} if first else {}
    asked = SamplingParams(max_tokens=1, temperature=0.0, logprobs=LIKELIEST, detokenize=False, **scored)
    whole = [{"prompt_token_ids": prompts[row.prompt]} for row in rows]
    given = {}
    for row, done in zip(rows, model.generate(whole, asked, use_tqdm=False), strict=True):
        likeliest = {token: one.logprob for token, one in done.outputs[0].logprobs[0].items()}
        given[row.prompt] = {"next": likeliest, "ids": list(done.prompt_token_ids)}
        if row.kept and not done.num_cached_tokens:
            raise ValueError("vLLM computed a later turn without its cache")
        if first:
            follow = zip(row.new[1:], done.prompt_logprobs[1:], strict=True)
            given[row.prompt]["scores"] = [None, *(one[token].logprob for token, one in follow)]
    return given


if __name__ == "__main__":
    answering.main("vLLM", "hf", prepare, answer)
