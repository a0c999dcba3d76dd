#!/usr/bin/env python3
"""Answer the kit with mlx-lm: python drivers/run_mlx_lm.py KIT OUT.json [--cpu]"""

import answering


def prepare(arguments):
    import importlib.metadata

    import mlx.core as mx

    if arguments.cpu:
        mx.set_default_device(mx.cpu)
        mx.disable_compile()  # which asks the system's C++ compiler for each kernel
    version = importlib.metadata.version
    return {"release": version("mlx-lm"), "versions": {"mlx": version("mlx"), "transformers": version("transformers")}}


def answer(path, prompts, context, arguments):
    from pathlib import Path

    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(path), lazy=True)
    model.set_dtype(getattr(mx, arguments.dtype))
    found = []
    for ids in prompts:
        out = model(mx.array([ids]))
        log_probs = nn.log_softmax(getattr(out, "logits", out).astype(mx.float32)[0], axis=-1)
        scores = mx.take_along_axis(log_probs[:-1], mx.array(ids[1:])[:, None], axis=-1)[:, 0]
        found.append({"scores": [None, *scores.tolist()], "next": dict(enumerate(log_probs[-1].tolist()))})
    return found


if __name__ == "__main__":
    answering.main("mlx-lm", "hf", prepare, answer, [("--cpu", {"action": "store_true", "help": "compute on the CPU"})])
