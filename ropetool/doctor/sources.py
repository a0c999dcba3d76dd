"""Rules that compare a file with the checkpoint it was built from.

The source is the first of:
- the checkpoint that the user passes,
- the config.json next to a GGUF file, if its family and size match,
- the repository that the file names, if the local Hub cache contains it. ropetool does not use the network for this.
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
from ropetool.files.hub import HubId, hub_id
from ropetool.files.hub.snapshots import on_disk
from ropetool.runtimes.inspection import inspect_checkpoint
from ropetool.runtimes.llama_cpp import architectures as archs

NAMED = ("general.source.huggingface.repository", "general.source.repo_url", "general.source.url")
_ADDRESS = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/")
CONTEXT_WORDS = "context "  # set_differences begins a difference of lengths with this word


def source_table(case: Case) -> Iterator[Finding]:
    for text in _differing(case):
        if not text.startswith(CONTEXT_WORDS):
            sentence = f"the RoPE table differs from its source {_name(case)}: {text}"
            yield Finding("source-table", ERROR, sentence, _fix(case), runtimes=(case.checkpoint.runtime,))


def source_context(case: Case) -> Iterator[Finding]:
    for text in _differing(case):
        if text.startswith(CONTEXT_WORDS):
            sentence = f"the context length differs from its source {_name(case)}: {text}"
            context = case.source.rope.max_position_embeddings if case.source and case.source.rope else 0
            fix = stating(case, context) or f"state {context} tokens"
            yield Finding("source-context", WARNING, sentence, fix, runtimes=(case.checkpoint.runtime,))


def _name(case: Case) -> str:
    return "" if case.source is None else case.source.name


def _differing(case: Case) -> list[str]:
    source = case.source
    if source is None or source.rope is None or case.rope is None:
        return []
    return set_differences(source.rope, case.rope)


def _fix(case: Case) -> str:
    """Return the command that gives the file the source's table, or the step to convert the source again."""
    source = case.source
    if source is None or source.rope is None or source.full is None or case.path is None or case.rope is None:
        return ""
    source_entries, entries = source.rope.named_as(case.rope).entries, case.rope.entries
    line = ""
    if source_entries.keys() == entries.keys():  # the layout stays, because it belongs to the rows of the weights
        target_entries = {
            layer_type: replace(source_entries[layer_type], layout=own.layout, layers=own.layers)
            for layer_type, own in entries.items()
        }
        line = again(case, source.full, replace(source.rope, entries=target_entries))
    return line or f"convert {source.name} again"


def source_of(checkpoint: GgufCheckpoint) -> Case | None:
    """Return the checkpoint that a GGUF file on this disk was built from, or None if ropetool does not find it."""
    record = None
    with suppress(RopetoolError):
        record = provenance.record(checkpoint.path)
    if record is not None:
        return None  # ropetool wrote the file, and `check` compares it with this record
    config = checkpoint.path.parent / names.CONFIG_JSON
    if config.is_file() and (case := _opened(config.parent, checkpoint)) is not None:
        return case
    for key in NAMED:
        value = checkpoint.values.get(key)
        if value is None or value.type is not ValueType.STR or len(value.raw) > 1024:
            continue
        with suppress(RopetoolError):
            named = hub_id(_ADDRESS.sub("", str(value.decode())).rstrip("/"))
            place = on_disk(HubId(named.repo, named.revision)) if named is not None else None
            if place is not None:
                return _opened(place, checkpoint)
    return None


def _opened(place: Path, checkpoint: GgufCheckpoint) -> Case | None:
    """Return the checkpoint in a folder, if its family and size match the file."""
    with suppress(RopetoolError, OSError):
        source = open_checkpoint(place)
        if source.format != "hf":
            return None
        case = Case(str(place), source, inspect_checkpoint(source))
        family = case.inspection.family if case.inspection else None
        same_family = family is not None and family.gguf_architecture == checkpoint.name
        sizes = {names.NUM_HIDDEN_LAYERS: archs.BLOCK_COUNT, names.HIDDEN_SIZE: archs.EMBEDDING_LENGTH}
        same_size = all(case.section.get(key) == _value(checkpoint, suffix) for key, suffix in sizes.items())
        return case if same_family and same_size else None
    return None


def _value(checkpoint: GgufCheckpoint, suffix: str) -> object:
    value = checkpoint.values.get(f"{checkpoint.name}.{suffix}")
    return None if value is None else value.decode()
