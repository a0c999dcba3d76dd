"""Log probabilities of mlx-lm on a CPU; run by the interpreter of its own environment.

A job is a line of JSON on stdin: {"dir": a checkpoint, "ids": token ids, "out": a file}. For each, the log probability
of every token but the first is written to `out` as .npy, and a line of JSON goes to stdout: {"dir"}, with "error" where
it stopped. The first line is {"versions"}.
"""

import json
import os
import sys
import traceback
from pathlib import Path

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the engine prints is not an answer
os.environ["HF_HUB_OFFLINE"] = "1"


def say(answer):
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


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
    import numpy

    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # which asks the system's C++ compiler, seconds for each kernel
    say({"versions": {name: importlib.metadata.version(name) for name in ("mlx-lm", "mlx", "transformers")}})
    for line in sys.stdin:
        job = json.loads(line)
        answer = {"dir": job["dir"]}
        try:
            numpy.save(job["out"], numpy.array(log_probs(job["dir"], job["ids"])))
        except BaseException as error:  # noqa: BLE001 - whatever stops the engine is the answer
            traceback.print_exc()
            answer["error"] = f"{type(error).__name__}: {error}"
        say(answer)
        mx.clear_cache()


if __name__ == "__main__":
    main()
