"""What llama.cpp makes of files: each is loaded in a fork of its own, for a bad value aborts the whole process.

Arguments: `vocab` for the vocabulary alone or `model` for four tokens decoded, then paths. Prints {path: outcome} as JSON.
"""

from __future__ import annotations

import json
import os
import sys

import llama_cpp
import numpy as np

OUTCOMES = {0: "loads", 3: "does not load", 4: "has no context", 5: "does not decode", 6: "computes no numbers"}


def outcome(path: str, vocab_only: bool) -> int:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        return 3
    if vocab_only:
        return 0
    context_params = llama_cpp.llama_context_default_params()
    context_params.n_ctx = 0  # what the file states
    context = llama_cpp.llama_init_from_model(model, context_params)
    if not context:
        return 4
    tokens = (llama_cpp.llama_token * 4)(1, 2, 3, 4)
    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, 4)):
        return 5
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(size,))
    return 0 if np.isfinite(logits).all() else 6


def main() -> None:
    kind, *paths = sys.argv[1:]
    llama_cpp.llama_backend_init()
    found = {}
    for path in paths:
        child = os.fork()
        if child == 0:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            os._exit(outcome(path, kind == "vocab"))
        found[path] = OUTCOMES.get(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "aborts")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
