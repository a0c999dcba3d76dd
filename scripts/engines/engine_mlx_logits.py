"""Logits of mlx-lm on a CPU; run by the interpreter of its own environment: FOLDER TOKENS.json OUTPUT.npy."""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def main():
    folder, tokens, output = (Path(one) for one in sys.argv[1:])
    mx.set_default_device(mx.cpu)
    mx.disable_compile()  # which asks the system's C++ compiler, seconds for each kernel
    model, _ = load_model(folder, lazy=True)
    model.set_dtype(mx.float32)
    found = model(mx.array([json.loads(tokens.read_text())]))
    np.save(output, np.asarray(getattr(found, "logits", found).astype(mx.float32)[0]))


if __name__ == "__main__":
    main()
