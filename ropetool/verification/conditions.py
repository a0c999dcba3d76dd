"""The conditions of a run besides its rows: the bytes of models and texts, program versions, the device.

A journal compares the conditions with the conditions of an interrupted run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from ropetool import __version__
from ropetool.checkpoint import fingerprints
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.verification.runners.torch_library import library, torch_device
from ropetool.verification.texts import Document, fingerprint

SOURCE = "source"  # the role of the model that all candidates are built from
TORCH = ("torch", "transformers", "tokenizers")
LLAMA_CPP = ("llama-cpp-python",)


def run_key(models: Mapping[str, Checkpoint], documents: Sequence[Document], computed_by: Sequence[str]) -> str:
    """Return the key of a run: the paths of models, the names of documents, and the settings of the computation."""
    paths = [f"{role} {checkpoint.path.absolute()}" for role, checkpoint in models.items()]
    return "\n".join([*paths, *(document.name for document in documents), *computed_by])


def conditions(
    models: Mapping[str, Checkpoint], documents: Sequence[Document], known: Mapping[str, str], device: str | None
) -> dict[str, str]:
    """Return the conditions that figures depend on, by the name that a note uses.

    known: the fingerprints of some models by role, if the caller has them.
    device: torch's name of the device; None if no model runs in torch.

    Raises: CheckpointError; ConfigError for a device that this machine does not have; MissingDependency.
    """
    conditions_by_name = {"ropetool": __version__}
    for role, checkpoint in models.items():
        conditions_by_name[f"the content of the {role}"] = known.get(role) or fingerprints.of(checkpoint)
        stamps = fingerprints.stamps(checkpoint)
        conditions_by_name |= {f"size, date or inode of {name} of the {role}": stamp for name, stamp in stamps.items()}
    conditions_by_name["the texts"] = fingerprint(documents)
    in_llama_cpp = [isinstance(checkpoint, GgufCheckpoint) for checkpoint in models.values()]
    programs = (*(LLAMA_CPP if any(in_llama_cpp) else ()), *(() if all(in_llama_cpp) else TORCH))
    conditions_by_name |= {program: _version(program) for program in programs}
    if device is not None and not all(in_llama_cpp):
        conditions_by_name["the device"] = _device(device)
    return conditions_by_name


def _version(program: str) -> str:
    try:
        return metadata.version(program)
    except metadata.PackageNotFoundError:
        return "none"


def _device(name: str) -> str:
    """Return the device that torch uses for a name, with the model of a CUDA device."""
    torch = library("torch")
    device = torch_device(torch, name)
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
