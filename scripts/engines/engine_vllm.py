"""Log probabilities of vLLM on a CPU; run by the interpreter of its own environment.

engine_grid/answering.py says what is asked and answered.
"""

import gc
import os
import sys
import traceback
from unittest.mock import MagicMock

from engine_grid.answering import serve

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1",
)  # fmt: skip
os.environ.setdefault("OMP_NUM_THREADS", "1")


def log_probs(path, ids):
    from vllm import LLM, SamplingParams

    length = len(ids) + 1
    model = LLM(
        model=path, dtype="float32", enforce_eager=True, max_model_len=length, max_num_batched_tokens=length,
        max_num_seqs=1, enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
        limit_mm_per_prompt={"image": 0, "video": 0, "audio": 0},
    )  # fmt: skip
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0.0, detokenize=False)
    done = model.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)[0]
    return [given[token].logprob for token, given in zip(ids[1:], done.prompt_logprobs[1:], strict=True)]


def without_torchvision():
    """Let files that read images be imported: the torchvision that comes along does not fit torch's CPU build."""
    import transformers.utils as utils

    utils.is_torchvision_available()  # which keeps its answer
    for name in (
        "",
        ".io",
        ".ops",
        ".transforms",
        ".transforms.functional",
        ".transforms.v2",
        ".transforms.v2.functional",
    ):
        sys.modules[f"torchvision{name}"] = MagicMock()


def on_strides():
    """Have rows that do not lie side by side, as those of MLA, rotated by the engine's own code in Python.

    The kernel for a CPU reads them as if they did; that for a GPU and the one in Python heed the strides.
    """
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    kernel = RotaryEmbedding.forward_cpu

    def forward(self, positions, query, key=None):
        beside = query.is_contiguous() or query.ndim < 3
        return (kernel if beside else RotaryEmbedding.forward_native)(self, positions, query, key)

    RotaryEmbedding.forward_cpu = forward


def main():
    import torch
    import transformers
    import vllm
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.model_executor.models import registry

    torch.set_num_threads(1)
    without_torchvision()
    # What follows is for speed alone: a class is looked at without a process of its own, and garbage is collected once a job.
    registry._run_in_subprocess = lambda function: function()
    collect, gc.collect = gc.collect, lambda *_: 0
    gc.disable()
    on_strides()

    def tidy():
        collect()
        try:
            cleanup_dist_env_and_memory()
        except Exception:  # noqa: BLE001 - a half-made engine leaves nothing to clean
            traceback.print_exc()

    versions = {"vllm": vllm.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    serve(versions, log_probs, tidy)


if __name__ == "__main__":
    main()
