"""Which files the real libllama loads: tiny models of any architecture, their weights zeros, with keys taken away or shortened.

llama.cpp makes a model from keys alone (rotation_probe.py) and names each tensor that it wants; a file with those is a model
that it loads. As a program:

    loading_probe.py tensors PATH...    writes beside each file of keys a .json of the tensors that llama.cpp asks for
    loading_probe.py outcomes PATH...   prints {path: whether llama.cpp loads it and opens a context} as JSON, each in a fork
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import rotation_probe

CONTEXT = 256


def asked(path: Path) -> dict[str, tuple[list[int], int]]:
    """Return the shape and the type of each tensor that llama.cpp asks for with these keys. Raises: ValueError."""
    lib, base = rotation_probe._library()
    found: dict[str, tuple[list[int], int]] = {}

    @rotation_probe.SET_DATA
    def keep(pointer: Any, user_data: Any) -> None:
        tensor = pointer.contents
        found[tensor.name.decode()] = (list(tensor.ne), tensor.type)

    keys = base.gguf_init_from_file(str(path).encode(), rotation_probe.InitParams(True, None))
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = rotation_probe._LOADED[2](keys, keep, None, params)
    if not model:
        raise ValueError(f"{path.name}: llama.cpp makes no model of these keys")
    lib.llama_model_free(model)
    return found


def with_tensors(keys: gguf.GGUFWriter, tensors: dict[str, tuple[list[int], int]], path: Path) -> Path:
    """Write a model whose keys a writer holds: its weights are a hole in the file, all zeros."""
    size = 0
    for name, (lengths, kind) in tensors.items():
        shape = list(lengths)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        dtype = gguf.GGMLQuantizationType(kind)
        count = 1
        for length in shape:
            count *= length
        size_of = gguf.GGML_QUANT_SIZES[dtype]
        nbytes = count * size_of[1] // size_of[0]
        keys.tensors[0][name] = gguf.gguf_writer.TensorInfo(shape=shape[::-1], dtype=dtype, nbytes=nbytes)
        size += keys.ggml_pad(nbytes, keys.data_alignment)
    keys.open_output_file(path)
    keys.write_header_to_file(path)
    keys.write_kv_data_to_file()
    keys.write_ti_data_to_file()
    output = keys.fout[0]
    start = keys.ggml_pad(output.tell(), keys.data_alignment)
    keys.close()
    os.truncate(path, start + size)
    return path


def loads(path: str) -> bool:
    lib = rotation_probe._library()[0]
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(path.encode(), params)
    settings = lib.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = CONTEXT, 1, 1
    return bool(model) and bool(lib.llama_init_from_model(model, settings))


def _apart(job: Any) -> int:
    """Return what a job returns in a fork, which may abort; 70 then."""
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if not os.environ.get("LOADING_LOG"):
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        os._exit(job())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 70


def _write_tensors(path: Path) -> int:
    path.with_suffix(".json").write_text(json.dumps(asked(path)), encoding="utf-8")
    return 0


def main() -> None:
    what, *paths = sys.argv[1:]
    rotation_probe._library()
    if what == "tensors":
        for path in paths:
            _apart(lambda path=path: _write_tensors(Path(path)))
    else:
        print(json.dumps({path: _apart(lambda path=path: 0 if loads(path) else 1) == 0 for path in paths}))


if __name__ == "__main__":
    main()
