#!/usr/bin/env python3
"""Answer the kit with mlx-lm: python drivers/run_mlx_lm.py KIT OUT.json [--cpu]"""

import json

import answering


def prepare(arguments):
    import importlib.metadata

    import mlx.core as mx

    if arguments.cpu:
        mx.set_default_device(mx.cpu)
        mx.disable_compile()  # which asks the system's C++ compiler for each kernel
    version = importlib.metadata.version
    return {"release": version("mlx-lm"), "versions": {"mlx": version("mlx"), "transformers": version("transformers")}}


def answer(job, arguments):
    import mlx.core as mx
    import mlx.nn as nn

    model = _load(job["path"])
    model.set_dtype(getattr(mx, arguments.dtype))
    given, cache = {}, None
    for rows in answering.steps(job):
        width = max(len(row.new) for row in rows)
        padding = [width - len(row.new) for row in rows]
        if job["share"] and cache is None:
            cache = _cache(model, padding)
        out = model(mx.array([[0] * count + row.new for count, row in zip(padding, rows, strict=True)]), cache=cache)
        logits = getattr(out, "logits", out).astype(mx.float32)
        for at, (row, count) in enumerate(zip(rows, padding, strict=True)):
            log_probs = nn.log_softmax(logits[at, count:], axis=-1).tolist()
            given[row.prompt] = answering.answered(row, log_probs)
    return answering.in_order(given)


def _load(path):
    from pathlib import Path

    from mlx_lm.utils import load_model

    with open(f"{path}/config.json", encoding="utf-8") as file:
        model_type = json.load(file)["model_type"]
    try:
        return load_model(Path(path), lazy=True)[0]
    except ValueError as error:
        if "not supported" not in str(error):
            raise
        unsupported = error
    # Some classes are known only by the type of the published checkpoints, which wrap the text model.
    try:
        return load_model(Path(path), lazy=True, model_config={"model_type": model_type.removesuffix("_text")})[0]
    except ValueError as error:
        if "not supported" not in str(error):
            raise
        raise answering.Unsupported(str(unsupported)) from error


def _cache(model, padding):
    """Return a cache for each layer. padding: of the first batch, left of each row."""
    from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

    if len(padding) == 1:
        return make_prompt_cache(model)
    return [BatchKVCache(padding) for _ in model.layers]


if __name__ == "__main__":
    answering.main("mlx-lm", "hf", prepare, answer, [("--cpu", {"action": "store_true", "help": "compute on the CPU"})])
