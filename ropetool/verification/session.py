"""The subject of a verification: a target, its source, both lengths and the texts. It opens files and runs no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool import names
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

    source: the given baseline, or else the unchanged source of the target, or None.
    look, source_look: the decoded settings of both.
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
        """Return the session of a target as a user names it. Raises: CheckpointError; ConfigError without any length."""
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
        """The checkpoints by role."""
        return {TARGET: self.target} if self.source is None else {TARGET: self.target, BASELINE: self.source}

    @property
    def extension(self) -> dict[str, Any] | None:
        """Method, factor and parameters of what made the target longer, as its record says, bakes aside.

        Without one, what its own keys state, with None for the parameters; None where they state no extension.
        """
        plans = (made.plan for made in provenance.lineage(self.target.path))
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
        """How the plans that made the target renamed its model_type."""
        edits = [edit for made in provenance.lineage(self.target.path) for edit in made.plan.get("edits", ())]
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

    notes: receives a note if several texts count as one document.
    bundled: gives the package's documents. Raises: ConfigError.
    """
    if not texts:
        return bundled(longest)
    documents, said = independent(read_documents([Path(text) for text in texts]))
    notes += said
    return catalogue.of_their_kinds(documents)


def unchanged_source(target: Path, notes: list[str]) -> Path | None:
    """Return what the target was extended from, if it is still what it was; otherwise say so.

    An export is the same model in another format, and a bake the same in other words, so its baseline is that of the
    checkpoint it was made from.
    """
    for made in provenance.lineage(target):
        source, problem = Path(made.source), provenance.source_problem(made)
        if not problem:
            passed_on = made.kind == provenance.EXPORT or made.plan.get("method") == BAKE
            if passed_on and provenance.record(source) is not None:
                continue
            problem = without_class(HfCheckpoint.open(source)) if source.is_dir() and not target.is_dir() else ""
            if not problem:
                return source
            problem = f"cannot run: {problem}"
        length = f" within {made.trained_length} tokens" if made.trained_length else ""
        own = f"the target is compared with itself{length}"
        if provenance.is_of_itself(target, made):
            notes.append(f"{provenance.EDITED}, so {own}; {COPY}")
        else:
            notes.append(f"the source {source} {problem}, so {own}; pass the source as --baseline")
        return None
    return None


def _before_edits(checkpoint: Checkpoint, look: Inspection, trained: int, notes: list[str]) -> int:
    """Return the context length before edits in place by `gguf set`, if it was shorter than `trained`; else `trained`."""
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


def lengths_of(found: Inspection, checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the context that the checkpoint states, and the length it was trained on.

    Raises: ConfigError if it states neither.
    """
    is_gguf = isinstance(checkpoint, GgufCheckpoint)
    stated = f"{found.model_type}.context_length" if is_gguf else names.MAX_POSITION_EMBEDDINGS
    context = found.rope.max_position_embeddings if found.rope else found.stated.get(stated)
    trained = found.trained_length or context
    if type(context) is not int or type(trained) is not int:
        raise ConfigError(
            f"{stated} is missing, so the trained length is unknown",
            where=checkpoint.where,
        )
    return context, trained
