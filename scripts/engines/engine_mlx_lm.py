"""Log probabilities of mlx-lm on a CPU; run by the interpreter of its own environment.

engine_grid/answering.py says what is asked and answered.
"""

import os
from pathlib import Path

from engine_grid.answering import serve

os.environ["HF_HUB_OFFLINE"] = "1"


def log_probs(path, ids):
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(path), lazy=True)
    model.set_dtype(mx.float32)
    out = model(mx.array([ids]))
    scores = nn.log_softmax(getattr(out, "logits", out).astype(mx.float32)[0, :-1], axis=-1)
    return mx.take_along_axis(scores, mx.array(ids[1:])[:, None], axis=-1)[:, 0]


def main():
    import importlib.metadata

    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # which asks the system's C++ compiler, seconds for each kernel
    versions = {name: importlib.metadata.version(name) for name in ("mlx-lm", "mlx", "transformers")}
    serve(versions, log_probs, mx.clear_cache)


if __name__ == "__main__":
    main()
