"""Rules about the checkpoint that a file was made from: whether both compute the same positions.

The source is the one given, the config.json beside a GGUF file where that is one of its kind and size, or the repository
that the file names, as far as the local cache of the hub has it. Nobody is asked over the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ropetool import names
from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.comparison.facts import set_differences
from ropetool.doctor.cases import Case
from ropetool.doctor.findings import ERROR, WARNING, Finding
from ropetool.doctor.remedies import again, stating
from ropetool.errors import RopetoolError
from ropetool.files.gguf import ValueType
from ropetool.files.hub import HubId, hub_id, on_disk
from ropetool.runtimes.inspection import inspect_checkpoint
from ropetool.runtimes.llama_cpp import architectures as archs

NAMED = ("general.source.huggingface.repository", "general.source.repo_url", "general.source.url")
_ADDRESS = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/")
CONTEXT_WORDS = "context "  # what set_differences says of lengths begins so


def source_table(case: Case) -> Iterator[Finding]:
    for text in _differing(case):
        if not text.startswith(CONTEXT_WORDS):
            said = f"the RoPE table differs from its source {_name(case)}: {text}"
            yield Finding("source-table", ERROR, said, _mended(case), runtimes=(case.checkpoint.runtime,))


def source_context(case: Case) -> Iterator[Finding]:
    for text in _differing(case):
        if text.startswith(CONTEXT_WORDS):
            said = f"the context length differs from its source {_name(case)}: {text}"
            context = case.source.rope.max_position_embeddings if case.source and case.source.rope else 0
            fix = stating(case, context) or f"state {context} tokens"
            yield Finding("source-context", WARNING, said, fix, runtimes=(case.checkpoint.runtime,))


def _name(case: Case) -> str:
    return "" if case.source is None else case.source.name


def _differing(case: Case) -> list[str]:
    source = case.source
    if source is None or source.rope is None or case.rope is None:
        return []
    return set_differences(source.rope, case.rope)


def _mended(case: Case) -> str:
    """Return the command that gives the file the source's table, or the one that makes the file anew."""
    source = case.source
    if source is None or source.rope is None or source.full is None or case.path is None or case.rope is None:
        return ""
    stated, entries = source.rope.named_as(case.rope).entries, case.rope.entries
    line = ""
    if stated.keys() == entries.keys():  # the order of channels goes with the rows of the weights
        wanted = {kind: replace(stated[kind], layout=own.layout, layers=own.layers) for kind, own in entries.items()}
        line = again(case, source.full, replace(source.rope, entries=wanted))
    return line or f"convert {source.name} again"


def source_of(checkpoint: GgufCheckpoint) -> Case | None:
    """Return the checkpoint that a GGUF file on this disk was made from, None where none is found."""
    made = None
    with suppress(RopetoolError):
        made = provenance.record(checkpoint.path)
    if made is not None:
        return None  # ropetool wrote it, to be what its record says
    beside = checkpoint.path.parent / names.CONFIG_JSON
    if beside.is_file() and (found := _opened(beside.parent, checkpoint)) is not None:
        return found
    for key in NAMED:
        value = checkpoint.values.get(key)
        if value is None or value.type is not ValueType.STR or len(value.raw) > 1024:
            continue
        with suppress(RopetoolError):
            asked = hub_id(_ADDRESS.sub("", str(value.decode())).rstrip("/"))
            place = on_disk(HubId(asked.repo, asked.revision)) if asked is not None else None
            if place is not None:
                return _opened(place, checkpoint)
    return None


def _opened(place: Path, checkpoint: GgufCheckpoint) -> Case | None:
    """Return the checkpoint there, if it is of the family and the size of the file."""
    with suppress(RopetoolError, OSError):
        source = open_checkpoint(place)
        if source.format != "hf":
            return None
        case = Case(str(place), source, inspect_checkpoint(source))
        family = case.found.family if case.found else None
        same_kind = family is not None and family.gguf_architecture == checkpoint.name
        sizes = {names.NUM_HIDDEN_LAYERS: archs.BLOCK_COUNT, names.HIDDEN_SIZE: archs.EMBEDDING_LENGTH}
        same_size = all(case.section.get(key) == _stated(checkpoint, suffix) for key, suffix in sizes.items())
        return case if same_kind and same_size else None
    return None


def _stated(checkpoint: GgufCheckpoint, suffix: str) -> object:
    value = checkpoint.values.get(f"{checkpoint.name}.{suffix}")
    return None if value is None else value.decode()
