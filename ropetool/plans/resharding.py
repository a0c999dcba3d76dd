"""A GGUF model written as several files, or as one again: the same keys and tensors, at the speed of a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.errors import ConfigError
from ropetool.escaping import command
from ropetool.files.gguf import read_shards
from ropetool.files.gguf.header import GgufHeader
from ropetool.files.gguf.splitting import SplitLimits, grouped, merged_values, part_values, tensors_of, write_file
from ropetool.plans.gguf_output import copied_record, counted_bytes, gguf_output

Progress = Callable[[str, int, int], None]
PREFIX = "--"  # of the options that state the limits


@dataclass(frozen=True)
class Resharded:
    """What was written: the files in their order, how many tensors and bytes they hold, and what to know."""

    files: tuple[Path, ...]
    tensors: int
    nbytes: int
    notes: tuple[str, ...]


def split_model(
    source: Path, target: Path, limits: SplitLimits, *, force: bool = False, progress: Progress | None = None
) -> Resharded:
    """Write a model, of one file or several, as files within these limits, under the names that llama.cpp demands.

    Raises: ConfigError if all fits into one file; OutputError, CheckpointError.
    """
    headers = read_shards(source)
    tensors = tensors_of(headers)
    found = grouped([tensor.nbytes for _, tensor in tensors], limits, PREFIX)
    if len(found) == 1:
        raise ConfigError(
            f"its {len(tensors)} tensors of {sum(tensor.nbytes for _, tensor in tensors):,} bytes fit into one file",
            where=str(headers[0].path), try_="pass a smaller --max-size or --max-tensors",
        )  # fmt: skip
    values = [part_values(headers[0].values, number, len(found), len(tensors)) for number in range(len(found))]
    with (
        gguf_output(target, headers[0].path, force=force) as made,
        counted_bytes(target.name, sum(header.file_size for header in headers), progress),
    ):
        for part, keys, stage in zip(found, values, made.stage(len(found)), strict=True):
            write_file(stage, keys, [tensors[index] for index in part])
        nbytes = sum(path.stat().st_size for path in made.staged)
        made.finish(copied_record(GgufCheckpoint.of(headers), {"files": len(found)}), {})
    return Resharded(tuple(made.files), len(tensors), nbytes, (*_left_out(headers), *made.notes))


def merge_model(source: Path, target: Path, *, force: bool = False, progress: Progress | None = None) -> Resharded:
    """Write a model that is split over files, named by any one of them, as one file.

    Raises: ConfigError if it is one file already; OutputError, CheckpointError.
    """
    headers = read_shards(source)
    if len(headers) == 1:
        raise ConfigError(
            "is a single file already", where=str(headers[0].path),
            try_=f"{command('ropetool', 'gguf', 'list', headers[0].path)}, which shows its keys",
        )  # fmt: skip
    tensors = tensors_of(headers)
    with (
        gguf_output(target, headers[0].path, force=force) as made,
        counted_bytes(target.name, sum(header.file_size for header in headers), progress),
    ):
        (stage,) = made.stage(1)
        write_file(stage, merged_values(headers[0].values), tensors)
        nbytes = stage.stat().st_size
        made.finish(copied_record(GgufCheckpoint.of(headers), {"files": 1}), {})
    return Resharded(tuple(made.files), len(tensors), nbytes, (*_left_out(headers), *made.notes))


def _left_out(headers: tuple[GgufHeader, ...]) -> list[str]:
    """Return a note for each file with bytes behind its last tensor, which no runtime reads and no copy keeps."""
    found = []
    for header in headers:
        behind = header.file_size - header.data_end
        if behind > 0:
            found.append(
                f"{behind:,} bytes after the last tensor of {header.path.name} were not copied; no runtime reads them"
            )
    return found
