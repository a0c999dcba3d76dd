#!/usr/bin/env python3
"""Answer the kit's GGUF files with llama.cpp of llama-cpp-python: python drivers/run_llama_cpp.py KIT OUT.json

The C interface, because the high-level class overrides rope keys of the file. The context is that of the model, as a server has it.
"""

import math
import os

import answering

PIECE = 512  # tokens of a batch
ERROR = 4  # ggml/include/ggml.h, GGML_LOG_LEVEL_ERROR
LOG = []  # the errors that llama.cpp has logged, and the function that it calls


def prepare(arguments):
    import llama_cpp

    if arguments.dtype != "float32":
        raise ValueError("the files are float32, and so is the cache here")
    llama_cpp.llama_backend_init()

    @llama_cpp.llama_log_callback
    def keep(level, text, _):
        if level == ERROR:
            LOG.append(text.decode("utf-8", "replace").strip())

    LOG.append(keep)  # which would be freed otherwise
    llama_cpp.llama_log_set(keep, None)
    return {"release": "llama-cpp-python " + llama_cpp.__version__, "versions": {}}


def answer(path, prompts, context, arguments):
    import llama_cpp as lib

    del LOG[1:]
    settings = lib.llama_model_default_params()
    settings.n_gpu_layers = arguments.gpu_layers
    model = lib.llama_model_load_from_file(os.fsencode(path), settings)
    if not model:
        raise ValueError(f"llama.cpp does not load the file: {' / '.join(LOG[1:])}")
    try:
        made = lib.llama_context_default_params()
        made.n_ctx, made.n_batch, made.n_ubatch = context, PIECE, PIECE
        made.type_k = made.type_v = lib.GGML_TYPE_F32
        made.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        made.n_threads = made.n_threads_batch = os.cpu_count() or 1
        handle = lib.llama_init_from_model(model, made)
        if not handle:
            raise ValueError(f"no context of {context} tokens: {' / '.join(LOG[1:])}")
        try:
            size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
            return [_prompt(lib, handle, size, ids) for ids in prompts]
        finally:
            lib.llama_free(handle)
    finally:
        lib.llama_model_free(model)


def _prompt(lib, handle, size, ids):
    lib.llama_memory_clear(lib.llama_get_memory(handle), True)
    batch = lib.llama_batch_init(PIECE, 0, 1)
    scores, log_probs = [None], []
    try:
        for start in range(0, len(ids), PIECE):
            piece = ids[start : start + PIECE]
            batch.n_tokens = len(piece)
            for at, token in enumerate(piece):
                batch.token[at], batch.pos[at], batch.logits[at] = token, start + at, 1
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            if code := lib.llama_decode(handle, batch):
                raise ValueError(f"llama_decode gives {code} at token {start}")
            for at in range(len(piece)):
                log_probs = _log_softmax(lib.llama_get_logits_ith(handle, at)[:size])
                if start + at + 1 < len(ids):
                    scores.append(log_probs[ids[start + at + 1]])
    finally:
        lib.llama_batch_free(batch)
    return {"scores": scores, "next": dict(enumerate(log_probs))}


def _log_softmax(logits):
    top = max(logits)
    total = top + math.log(sum(math.exp(one - top) for one in logits))
    return [one - total for one in logits]


GPU_LAYERS = ("--gpu-layers", {"type": int, "default": 0, "help": "layers on a GPU; default 0"})

if __name__ == "__main__":
    answering.main("llama.cpp", "gguf", prepare, answer, [GPU_LAYERS])
