"""K-quants and IQ types: quantise a GGUF file with libllama's own quantiser.

The quantiser runs in a child process, so that it can be interrupted, and so that its abort does not end this process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from ctypes import POINTER, c_float
from pathlib import Path
from threading import Thread
from typing import Any

from ropetool.errors import CheckpointError, ConfigError, MissingDependency, OutputError
from ropetool.escaping import install_line
from ropetool.files.gguf import ggml_type
from ropetool.gguf_export import children
from ropetool.gguf_export.imatrix import Weights, read_imatrix
from ropetool.gguf_model import mxfp4
from ropetool.gguf_model.outtypes import OUTTYPES
from ropetool.machine import processors
from ropetool.verification.runners.llama_library import last_words, library, listening

ROWS_HELD = 128 << 20  # bytes of rows that libllama may keep in memory, besides the file
_CHILD = f"""
import json, sys
from {__name__} import end_with_parent, run
end_with_parent()
sys.exit(run(json.loads(sys.argv[1])) or 0)
"""


def check(outtype: str, imatrix: Path | None) -> Weights:
    """Return the importance matrix, or an empty mapping, if this type can be written here.

    Raises: MissingDependency without llama-cpp-python; ConfigError if the type needs an importance matrix, or if it
    ignores a given one; the errors of `read_imatrix`.
    """
    out_type = OUTTYPES.get(outtype)
    if out_type is None or not out_type.by_libllama:
        if imatrix is not None:
            raise ConfigError(
                f"{outtype} does not use an importance matrix; K-quants and IQ types do",
                where="--imatrix", try_="--outtype q4_k_m",
            )  # fmt: skip
        return {}
    _library(outtype)
    if imatrix is not None:
        return read_imatrix(imatrix)
    if out_type.weighted:
        raise ConfigError(
            f"llama.cpp quantises to {outtype} only with an importance matrix",
            where="--imatrix", try_="llama-imatrix -m MODEL.gguf -f TEXT -o FILE, then --imatrix FILE",
        )  # fmt: skip
    return {}


def quantise(source: Path, target: Path, outtype: str, imatrix: Path | None, kept: Sequence[str] = ()) -> None:
    """Write the model in `source` to a new file `target` with quantised matrices. kept: tensors that stay in MXFP4.

    Raises: OutputError if the target cannot be written; CheckpointError with libllama's message for any other error.
    """
    task = {
        "source": str(source), "target": str(target), "file_type": OUTTYPES[outtype].file_type,
        "imatrix": None if imatrix is None else str(imatrix), "kept": list(kept),
    }  # fmt: skip
    code, errors = _in_child(task)
    if code == 0:
        return
    words = errors.decode("utf-8", "replace").strip().splitlines() or [f"ended with code {code}"]
    if "basic_ios::clear" in words[-1]:  # libstdc++'s message for a failed write
        raise OutputError(
            "could not be written completely; the disk may be full",
            where=str(target),
            try_="pass an -o on a different disk",
        )
    raise CheckpointError(f"llama.cpp cannot quantise the model: {words[-1]}", where=str(target))


def _in_child(task: dict[str, Any]) -> tuple[int, bytes]:
    """Return the exit code and the error output of a child that runs the task. The child ends with this process."""
    with subprocess.Popen(
        children.python(_CHILD, json.dumps(task)), env=children.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        errors = child.stderr.read()
    return child.returncode, errors


def _library(outtype: str) -> None:
    try:
        library()
    except MissingDependency as error:
        raise MissingDependency(
            f"{outtype} needs llama.cpp's quantiser, and llama-cpp-python is not installed",
            where="--outtype", try_=f"{install_line('llama')}; or --outtype q8_0, q5_1, q5_0, q4_1 or q4_0",
        ) from error  # fmt: skip


def end_with_parent() -> None:
    """Start a thread that ends this process when the parent ends for any reason.

    The parent's end of the pipe then closes.
    """

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def run(task: dict[str, Any]) -> str:
    """Run the task in the child process. Return libllama's error, or an empty text."""
    lib = library()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.max_buf_size = task["file_type"], processors(), ROWS_HELD
    weights = read_imatrix(Path(task["imatrix"])) if task["imatrix"] else {}
    if weights:
        params.imatrix = _imatrix(lib, weights)
    if task["kept"]:
        params.tt_overrides = _unchanged(lib, task["kept"])
    with listening(lib) as lines:
        code = lib.llama_model_quantize(os.fsencode(task["source"]), os.fsencode(task["target"]), params)
    return last_words(lines, f"code {code}") if code else ""


def _unchanged(lib: Any, names: Sequence[str]) -> Any:
    """Return C data that keeps these tensors in MXFP4, because libllama refuses to quantise quantised tensors."""
    entries = (lib.llama_model_tensor_override * (len(names) + 1))()
    for entry, name in zip(entries, names, strict=False):
        entry.pattern, entry.type = f"^{re.escape(name)}$".encode(), ggml_type(mxfp4.DTYPE)
    return entries


def _imatrix(lib: Any, weights: Weights) -> Any:
    """Return the weights as C data, with a final entry without a name. The weights must outlive the result."""
    entries = (lib.llama_model_imatrix_data * (len(weights) + 1))()
    for entry, (name, values) in zip(entries, weights.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(POINTER(c_float))
    return entries
