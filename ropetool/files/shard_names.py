"""The names of the files of a split GGUF model. llama.cpp defines them."""

from __future__ import annotations

import re
from pathlib import Path

_SHARD_SUFFIX = re.compile(r"(-[0-9]{5}-of-[0-9]{5})?\.gguf$")


def shard_paths(output: Path, count: int) -> list[Path]:
    """Return the paths of a model with `count` files.

    For one file, this is the path itself; otherwise llama.cpp defines the names.
    output: NAME.gguf, or the path of any shard.
    """
    if count == 1:
        return [output]
    return [output.with_name(shard_name(output.name, index, count)) for index in range(count)]


def model_name(path: Path) -> str:
    """Return the name of the model that contains a file, without the suffix and without the numbers of a shard."""
    return _SHARD_SUFFIX.sub("", path.name).removesuffix(".gguf")


def first_name(name: str) -> str:
    """Return the name of the model's first file from the name of any of its files.

    The record is next to the first file.
    """
    match = _SHARD_SUFFIX.search(name)
    return name if match is None or match[1] is None else shard_name(name, 0, int(match[1].rpartition("-")[2]))


def shard_name(name: str, index: int, count: int) -> str:
    """Return the name of a shard from the name of any shard. index: counts from 0."""
    return f"{_SHARD_SUFFIX.sub('', name)}-{index + 1:05d}-of-{count:05d}.gguf"
