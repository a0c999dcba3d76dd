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


def answer(job, arguments):
    import llama_cpp as lib

    del LOG[1:]
    settings = lib.llama_model_default_params()
    settings.n_gpu_layers = arguments.gpu_layers
    model = lib.llama_model_load_from_file(os.fsencode(job["path"]), settings)
    if not model:
        raise ValueError(f"llama.cpp does not load the file: {' / '.join(LOG[1:])}")
    try:
        made = lib.llama_context_default_params()
        made.n_ctx, made.n_batch, made.n_ubatch = job["together"] * job["context"], PIECE, PIECE
        made.n_seq_max = job["together"]
        made.type_k = made.type_v = lib.GGML_TYPE_F32
        made.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        made.n_threads = made.n_threads_batch = os.cpu_count() or 1
        handle = lib.llama_init_from_model(model, made)
        if not handle:
            raise ValueError(f"no context of {job['context']} tokens: {' / '.join(LOG[1:])}")
        try:
            size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
            given = {}
            for rows in answering.steps(job):
                given.update(_batch(lib, handle, size, rows))
            return answering.in_order(given)
        finally:
            lib.llama_free(handle)
    finally:
        lib.llama_model_free(model)


def _batch(lib, handle, size, rows):
    """Return the answers to a batch by prompt. Each row is a sequence, and their tokens alternate."""
    if rows[0].kept == 0:
        lib.llama_memory_clear(lib.llama_get_memory(handle), True)
    longest = max(len(row.new) for row in rows)
    queue = [(row, at) for at in range(longest) for row in rows if at < len(row.new)]
    scores = {row.prompt: [None] * (row.kept + 1) for row in rows}
    given = {}
    batch = lib.llama_batch_init(PIECE, 0, 1)
    try:
        for start in range(0, len(queue), PIECE):
            piece = queue[start : start + PIECE]
            batch.n_tokens = len(piece)
            for place, (row, at) in enumerate(piece):
                batch.token[place], batch.pos[place], batch.logits[place] = row.new[at], row.kept + at, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, row.number
            if code := lib.llama_decode(handle, batch):
                raise ValueError(f"llama_decode gives {code} at token {start}")
            for place, (row, at) in enumerate(piece):
                log_probs = _log_softmax(lib.llama_get_logits_ith(handle, place)[:size])
                if at + 1 < len(row.new):
                    scores[row.prompt].append(log_probs[row.new[at + 1]])
                else:
                    given[row.prompt] = {"scores": scores[row.prompt], "next": dict(enumerate(log_probs))}
    finally:
        lib.llama_batch_free(batch)
    return given


def _log_softmax(logits):
    top = max(logits)
    total = top + math.log(sum(math.exp(one - top) for one in logits))
    return [one - total for one in logits]


GPU_LAYERS = ("--gpu-layers", {"type": int, "default": 0, "help": "layers on a GPU; default 0"})

if __name__ == "__main__":
    answering.main("llama.cpp", "gguf", prepare, answer, [GPU_LAYERS], quantises=True)
