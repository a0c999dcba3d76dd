"""The provenance file beside an output: which source, which plan, which trained length, and its certificate.

Reading is forgiving towards unknown keys and strict towards wrong types: the file may have been edited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CorruptFile
from ropetool.formats.hf import ABSENT, read_optional_object
from ropetool.formats.hf.jsontext import shown

SCHEMA = 1
CERTIFICATE = "certificate"
EXTENSION, EXPORT = "extension", "export"


@dataclass(frozen=True)
class Provenance:
    """What an output says about its making.

    plan: how its positions came to be; empty for the export of a checkpoint that ropetool did not scale.
    trained_length: in tokens; None where such a checkpoint does not say it. export: the type of the matrices and the
    encoding of the positions, of a file that `export` wrote. certificate: as it stands in the file, unchecked.
    """

    source: str
    source_fingerprint: str
    trained_length: int | None
    plan: Mapping[str, Any]
    export: Mapping[str, Any] | None = None
    certificate: Any = None

    @property
    def kind(self) -> str:
        """`extension` if `source` is what was extended, `export` if it is the same model in another format."""
        return EXTENSION if self.export is None else EXPORT

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file; `export` and `certificate` only where there is one."""
        from ropetool import __version__

        more = {EXPORT: self.export, CERTIFICATE: self.certificate}
        return {
            "schema": SCHEMA, "ropetool": __version__, "source": self.source,
            "source_fingerprint": self.source_fingerprint, "trained_length": self.trained_length, "plan": self.plan,
            **{key: value for key, value in more.items() if value is not None},
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
    """Return the provenance of an output whose positions ropetool scaled, or None.

    The export of a checkpoint that ropetool did not scale has None too: to extend it is like extending that checkpoint.

    Raises: CorruptFile if the file is not what ropetool writes.
    """
    found = record(checkpoint)
    return None if found is None or (found.kind == EXPORT and not found.plan) else found


def record(checkpoint: Path) -> Provenance | None:
    """Return the provenance of any output, or None where there is no such file.

    Raises: CorruptFile if it is not what ropetool writes.
    """
    path = place(checkpoint)
    found = read_optional_object(path)
    return None if found is None else _checked(found[1], path)


def lineage(checkpoint: Path) -> Iterator[Provenance]:
    """Yield the record of an output, then those of what it was made from, back to the first; a source that a file
    names twice ends it.

    Raises: CorruptFile if one is not what ropetool writes.
    """
    made, seen = record(checkpoint), set[str]()
    while made is not None and made.source not in seen:
        seen.add(made.source)
        yield made
        made = record(Path(made.source))


def _checked(data: Mapping[str, Any], path: Path) -> Provenance:
    kinds = {"source": str, "source_fingerprint": str, "trained_length": int, "plan": dict}
    kinds |= {EXPORT: dict} if EXPORT in data else {}
    for key, kind in kinds.items():
        unknown_length = key == "trained_length" and EXPORT in data and data.get(key, ABSENT) is None
        if type(data.get(key)) is not kind and not unknown_length:
            raise _foreign(path, f"{key} is {shown(data.get(key, ABSENT))}")
    length = data["trained_length"]
    if length is not None and length < 1:
        raise _foreign(path, f"trained_length is {length}")
    return Provenance(
        data["source"], data["source_fingerprint"], length, data["plan"], data.get(EXPORT), data.get(CERTIFICATE)
    )


def write(made: Provenance, destination: Path) -> None:
    """Write the file, in ASCII, so that a path that is no UTF-8 survives too."""
    destination.write_text(json.dumps(made.to_json(), indent=2) + "\n", encoding="ascii")


def _foreign(path: Path, reason: str) -> CorruptFile:
    return CorruptFile(
        f"it is not a provenance file of ropetool ({reason})", where=str(path), try_="move it away, then run again"
    )
