"""GGUF files: reading headers without tensor data, copies with changed keys and vectors, and models split over files.

The runtimes interpret the keys and tensors.
"""

from ropetool.files.gguf.codec import Value
from ropetool.files.gguf.entries import HeaderGoesOn, TensorInfo
from ropetool.files.gguf.header import (
    MAX_HEADER_BYTES,
    GgufHeader,
    check_vector,
    parse_header,
    read_header,
    read_vector,
)
from ropetool.files.gguf.kinds import GGML_TYPES, ValueType, ggml_type
from ropetool.files.gguf.patch import Patch
from ropetool.files.gguf.shards import read_shards, shards, split_patch
from ropetool.files.gguf.writer import write_patched

__all__ = [
    "GGML_TYPES",
    "MAX_HEADER_BYTES",
    "GgufHeader",
    "HeaderGoesOn",
    "Patch",
    "TensorInfo",
    "Value",
    "ValueType",
    "check_vector",
    "ggml_type",
    "parse_header",
    "read_header",
    "read_shards",
    "read_vector",
    "shards",
    "split_patch",
    "write_patched",
]
