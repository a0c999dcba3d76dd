"""Hugging Face directories: edits of config.json as text, headers of safetensors files, and shards."""

from ropetool.files.hf.directory import (
    Directory,
    headers,
    limits_of,
    open_directory,
    read_object,
    read_optional_object,
)
from ropetool.files.hf.jsontext import ABSENT, Edit, apply_edits, parse_object
from ropetool.files.hf.safetensors import DTYPE_BITS, Header, SafetensorsInfo, data_start, header_bytes, read_header

__all__ = [
    "ABSENT",
    "DTYPE_BITS",
    "Directory",
    "Edit",
    "Header",
    "SafetensorsInfo",
    "apply_edits",
    "data_start",
    "header_bytes",
    "headers",
    "limits_of",
    "open_directory",
    "parse_object",
    "read_header",
    "read_object",
    "read_optional_object",
]
