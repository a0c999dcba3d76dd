"""The provenance file beside an output: which source, which plan, which trained length.

Reading is forgiving towards unknown keys and strict towards wrong types: the file may have been edited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CorruptFile
from ropetool.formats.hf import ABSENT, read_optional_object
from ropetool.formats.hf.jsontext import shown

SCHEMA = 1


@dataclass(frozen=True)
class Provenance:
    """What an output says about its making."""

    source: str
    source_fingerprint: str
    trained_length: int
    plan: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        from ropetool import __version__

        return {
            "schema": SCHEMA, "ropetool": __version__, "source": self.source,
            "source_fingerprint": self.source_fingerprint, "trained_length": self.trained_length, "plan": self.plan,
        }  # fmt: skip


def place(checkpoint: Path) -> Path:
    """Return where the provenance of a checkpoint stands: inside a directory, beside a file."""
    return checkpoint / names.PROVENANCE_JSON if checkpoint.is_dir() else beside(checkpoint)


def beside(file: Path) -> Path:
    """Return the name of the provenance beside this file."""
    return file.with_name(f"{file.name}.{names.PROVENANCE_JSON}")


def fingerprint(checkpoint: Path) -> str:
    """Return a digest of config.json's text and of every weight file's name, size and modification time.

    Of a GGUF file it is the size, the time and the first MiB, which holds the rope keys. Cheap on purpose: it says
    whether a source is still the one that an output was made from.
    """
    if checkpoint.is_file():
        status = checkpoint.stat()
        with checkpoint.open("rb") as file:
            digest = hashlib.sha256(file.read(2**20))
        digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()
    return _directory_fingerprint(checkpoint)


def _directory_fingerprint(directory: Path) -> str:
    digest = hashlib.sha256((directory / names.CONFIG_JSON).read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def read(checkpoint: Path) -> Provenance | None:
    """Return the provenance of an output of ours, or None where there is no such file.

    Raises: CorruptFile if it is not what ropetool writes.
    """
    path = place(checkpoint)
    found = read_optional_object(path)
    if found is None:
        return None
    data = found[1]
    for key, kind in (("source", str), ("source_fingerprint", str), ("trained_length", int), ("plan", dict)):
        if type(data.get(key)) is not kind:
            raise _foreign(path, f"{key} is {shown(data.get(key, ABSENT))}")
    if data["trained_length"] < 1:
        raise _foreign(path, f"trained_length is {data['trained_length']}")
    return Provenance(data["source"], data["source_fingerprint"], data["trained_length"], data["plan"])


def _foreign(path: Path, reason: str) -> CorruptFile:
    return CorruptFile(
        f"it is not a provenance file of ropetool ({reason})", where=str(path), try_="move it away, then run again"
    )
