"""The subject of a verification: a target, its source, both lengths and the texts. This does not run a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool import names, packed
from ropetool.checkpoint import edit_log, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint, open_checkpoint
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.plans.plan import BAKE
from ropetool.rope import methods
from ropetool.runtimes import inspection
from ropetool.runtimes.inspection import Inspection
from ropetool.verification import catalogue
from ropetool.verification.near_copies import independent
from ropetool.verification.readback.terms import COPY, Terms
from ropetool.verification.runners.torch_library import without_class
from ropetool.verification.scoring import BASELINE, TARGET
from ropetool.verification.texts import Document, default_documents, read_documents

UNDECODED = "the RoPE settings cannot be decoded"


@dataclass(frozen=True)
class Session:
    """A target, and the checkpoint that it is compared with.

    target: the checkpoint to verify.
    source: the given baseline, or else the unchanged source of the target, or None.
    look, source_look: the decoded settings of target and source.
    context: the configured context length of the target in tokens.
    trained: the trained length before any extension in tokens.
    terms: the user's statements about the target.
    notes: sentences for the result.
    """

    target: Checkpoint
    source: Checkpoint | None
    look: Inspection
    source_look: Inspection | None
    context: int
    trained: int
    terms: Terms
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, target: str | Path, baseline: str | Path | None, terms: Terms | None) -> Session:
        """Open a target and its baseline, each a path or a Hub id, and return their session.

        Raises: CheckpointError; ConfigError if the files do not contain any length.
        """
        terms, notes = terms or Terms(), list[str]()
        checkpoint = open_checkpoint(hub.local(target))
        source = hub.local(baseline) if baseline is not None else unchanged_source(checkpoint.path, notes)
        original = None if source is None else open_checkpoint(source)
        look = inspection.inspect_checkpoint(checkpoint)
        context, trained = lengths_of(look, checkpoint)
        before = None if original is None else inspection.inspect_checkpoint(original)
        if original is not None and before is not None:
            known = lengths_of(before, original)[1]
            trained = known if look.made is None else min(trained, known)
            if checkpoint.runtime != original.runtime:
                notes.append(
                    f"{checkpoint.runtime} runs the target and {original.runtime} the baseline, so their differences count too"
                )
        if original is None and terms.trained_length is None:
            trained = _before_edits(checkpoint, look, trained, notes)
        return cls(checkpoint, original, look, before, context, terms.trained_length or trained, terms, notes)

    @property
    def models(self) -> dict[str, Checkpoint]:
        """The checkpoint of each role."""
        return {TARGET: self.target} if self.source is None else {TARGET: self.target, BASELINE: self.source}

    @property
    def extension(self) -> dict[str, Any] | None:
        """The method, factor and params of the last extension in the target's record. Bakes do not count.

        Without such a record, method and factor come from the target's keys, without params. None without an extension.
        """
        plans = (record.plan for record in provenance.lineage(self.target.path))
        plan = next((plan for plan in plans if plan and plan.get("method") != BAKE), None)
        if plan is not None:
            return {key: plan.get(key) for key in ("method", "factor", "params")}
        entries = self.look.rope.entries.values() if self.look.rope else ()
        entry = next((entry for entry in entries if entry.table), None)
        if entry is None or entry.rope_type not in methods.names():
            return None
        return {"method": entry.rope_type, "factor": entry.factor, "params": None}

    @property
    def renamed(self) -> Mapping[str, str]:
        """The changes of model_type in the target's record: the new name of each old name."""
        edits = [edit for record in provenance.lineage(self.target.path) for edit in record.plan.get("edits", ())]
        return {
            str(edit["old"]): str(edit["new"]) for edit in edits
            if isinstance(edit, dict) and edit.get("path") == [names.MODEL_TYPE] and {"old", "new"} <= edit.keys()
        }  # fmt: skip


def documents_of(
    texts: Sequence[str | Path],
    longest: int,
    notes: list[str],
    bundled: Callable[[int], list[Document]] = default_documents,
) -> list[Document]:
    """Return the independent documents in these texts, or the package's documents for this longest length.

    longest: the longest length in tokens.
    notes: receives a note if several texts count as one document.
    bundled: returns the package's documents for a longest length.

    Raises: ConfigError.
    """
    if not texts:
        return bundled(longest)
    documents, more_notes = independent(read_documents([Path(text) for text in texts]))
    notes += more_notes
    return catalogue.with_kinds(documents)


def unchanged_source(target: Path, notes: list[str]) -> Path | None:
    """Return the source that the target was extended from, or None with a note if the source is missing or has changed.

    An export or a bake does not change the positions, so the search continues with the record of its source.
    notes: receives the note.
    """
    for record in provenance.lineage(target):
        source, problem = Path(record.source), provenance.source_problem(record)
        if not problem:
            passed_on = record.kind == provenance.EXPORT or record.plan.get("method") == BAKE
            if passed_on and provenance.record(source) is not None:
                continue
            problem = _not_run(source) if source.is_dir() and not target.is_dir() else ""
            if not problem:
                return source
            problem = f"cannot run: {problem}"
        length = f" within {record.trained_length} tokens" if record.trained_length else ""
        own = f"the target is compared with itself{length}"
        if provenance.is_of_itself(target, record):
            notes.append(f"{provenance.EDITED}, so {own}; {COPY}")
        else:
            notes.append(f"the source {source} {problem}, so {own}; pass the source as --baseline")
        return None
    return None


def _not_run(source: Path) -> str:
    checkpoint = HfCheckpoint.open(source)
    return without_class(checkpoint) or packed.not_run(checkpoint)


def _before_edits(checkpoint: Checkpoint, look: Inspection, trained: int, notes: list[str]) -> int:
    """Return the context length before in-place edits by `gguf set`, if it was shorter than `trained`; else `trained`."""
    if look.made is not None or not isinstance(checkpoint, GgufCheckpoint):
        return trained
    value = edit_log.first_value(checkpoint.path, f"{look.model_type}.context_length")
    before = None if value is None else value.decode()
    if type(before) is not int or before >= trained:
        return trained
    notes.append(
        f"its log of edits has a context length of {before} before the first edit: that counts as the trained length; "
        "--trained-length names another"
    )
    return before


def vocabulary_of(checkpoint: Checkpoint) -> int | None:
    """Return the number of tokens in the vocabulary, or None if the files do not contain it."""
    if isinstance(checkpoint, HfCheckpoint):
        size = checkpoint.section.get("vocab_size", checkpoint.config.get("vocab_size"))
        return size if isinstance(size, int) and not isinstance(size, bool) else None
    return next((tensor.shape[-1] for name, tensor in checkpoint.tensors.items() if name == "token_embd.weight"), None)


def lengths_of(look: Inspection, checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the configured context length and the trained length of a checkpoint, in tokens.

    Raises: ConfigError if its files do not contain any length.
    """
    is_gguf = isinstance(checkpoint, GgufCheckpoint)
    key = f"{look.model_type}.context_length" if is_gguf else names.MAX_POSITION_EMBEDDINGS
    context = look.rope.max_position_embeddings if look.rope else look.stated.get(key)
    trained = look.trained_length or context
    if type(context) is not int or type(trained) is not int:
        raise ConfigError(f"{key} is missing, so the trained length is unknown", where=checkpoint.where)
    return context, trained
