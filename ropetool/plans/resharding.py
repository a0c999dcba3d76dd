"""Write a GGUF model as several files, or as a single file. Keys and tensors stay the same."""

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
PREFIX = "--"  # of the options that set the limits


@dataclass(frozen=True)
class Resharded:
    """A written model.

    files: the files in their order.
    tensors, nbytes: the number of tensors, and the bytes of all files.
    notes: messages for the user.
    """

    files: tuple[Path, ...]
    tensors: int
    nbytes: int
    notes: tuple[str, ...]


def split_model(
    source: Path, target: Path, limits: SplitLimits, *, force: bool = False, progress: Progress | None = None
) -> Resharded:
    """Write a model as files within these limits, with the names that llama.cpp requires.

    Raises: ConfigError if everything fits into one file; OutputError, CheckpointError.
    """
    headers = read_shards(source)
    tensors = tensors_of(headers)
    groups = grouped([tensor.nbytes for _, tensor in tensors], limits, PREFIX)
    if len(groups) == 1:
        raise ConfigError(
            f"its {len(tensors)} tensors of {sum(tensor.nbytes for _, tensor in tensors):,} bytes fit into one file",
            where=str(headers[0].path), try_="pass a smaller --max-size or --max-tensors",
        )  # fmt: skip
    values = [part_values(headers[0].values, number, len(groups), len(tensors)) for number in range(len(groups))]
    with (
        gguf_output(target, headers[0].path, force=force) as output,
        counted_bytes(target.name, sum(header.file_size for header in headers), progress),
    ):
        for part, keys, stage in zip(groups, values, output.stage(len(groups)), strict=True):
            write_file(stage, keys, [tensors[index] for index in part])
        nbytes = sum(path.stat().st_size for path in output.staged)
        output.finish(copied_record(GgufCheckpoint.of(headers), {"files": len(groups)}))
    return Resharded(tuple(output.files), len(tensors), nbytes, (*_left_out(headers), *output.notes))


def merge_model(source: Path, target: Path, *, force: bool = False, progress: Progress | None = None) -> Resharded:
    """Write a model in several files as a single file. source: any of its files.

    Raises: ConfigError if it is a single file already; OutputError, CheckpointError.
    """
    headers = read_shards(source)
    if len(headers) == 1:
        raise ConfigError(
            "is a single file already", where=str(headers[0].path),
            try_=f"{command('ropetool', 'gguf', 'list', headers[0].path)}, which shows its keys",
        )  # fmt: skip
    tensors = tensors_of(headers)
    with (
        gguf_output(target, headers[0].path, force=force) as output,
        counted_bytes(target.name, sum(header.file_size for header in headers), progress),
    ):
        (stage,) = output.stage(1)
        write_file(stage, merged_values(headers[0].values), tensors)
        nbytes = stage.stat().st_size
        output.finish(copied_record(GgufCheckpoint.of(headers), {"files": 1}))
    return Resharded(tuple(output.files), len(tensors), nbytes, (*_left_out(headers), *output.notes))


def _left_out(headers: tuple[GgufHeader, ...]) -> list[str]:
    """Return a note for each file with bytes after its last tensor. No runtime reads them, and they are not copied."""
    notes = []
    for header in headers:
        behind = header.file_size - header.data_end
        if behind > 0:
            notes.append(
                f"{behind:,} bytes after the last tensor of {header.path.name} were not copied; no runtime reads them"
            )
    return notes
