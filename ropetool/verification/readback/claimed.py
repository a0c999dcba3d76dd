"""Readback without a record: the extension that the target says it is, made of the baseline again, and both compared.

Reads files alone and runs no model.
"""

from __future__ import annotations

import math

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.tensor_bytes import Compared
from ropetool.errors import RopetoolError
from ropetool.files.hf import ABSENT
from ropetool.files.hf.jsontext import shown
from ropetool.plans.claims import AS_IS, LENGTH, Claim, claim_of
from ropetool.plans.plan import Plan
from ropetool.rope.tables import TABLE_TOLERANCE, RopeSet
from ropetool.runtimes.decoded import decoded
from ropetool.verification.readback import keys
from ropetool.verification.readback.table_parity import compare_tables
from ropetool.verification.readback.terms import DRESS, FILES, LOGITS_DECIDE, NO_WEIGHTS, TABLES, WEIGHTS, Terms
from ropetool.verification.readback.weights import compare_weights
from ropetool.verification.results import FAIL, NOT_ASKED, NOT_RUN, PASS, Check

TENSORS_EQUAL = "tensors equal the baseline"
UNTABLED = "ropetool does not know how llama.cpp's converter exports this family"


def read_back_claim(target: Checkpoint, source: Checkpoint, terms: Terms) -> list[Check]:
    """Return the checks of tables, weights and files of a target that no record speaks for, against its baseline.

    A GGUF file is compared with the export of its baseline if that is a directory.
    Raises: ConfigError for a stated key that the target does not have.
    """
    claim: Claim | None = None
    try:
        claim = claim_of(target, source, stated=terms.stated, trained_length=terms.trained_length)
        tables = _tables(target, claim, terms)
    except RopetoolError as error:
        if error.where == "--stated":
            raise
        tables = Check(TABLES, None, TABLE_TOLERANCE, FAIL, error.without_folders())
    expected = source if claim is None else claim.expected
    return [tables, *read_back_rest(target, source, expected, terms, claim.plan if claim else None)]


def read_back_rest(
    target: Checkpoint,
    source: Checkpoint,
    expected: Checkpoint,
    terms: Terms,
    plan: Plan | None,
) -> list[Check]:
    """Return the checks of weights, files and dress. expected: the source after the extension that `plan` makes."""
    weights = _weights(target, source, plan, terms)
    if is_untabled(target, source):
        return [weights, Check(FILES, None, None, NOT_RUN, f"the keys could not be rebuilt: {UNTABLED}")]
    said = _said(target, source, expected)
    return [weights, _files(said), *_dress(said, terms)]


def is_untabled(target: Checkpoint, source: Checkpoint) -> bool:
    """Return whether a file is held against a directory of a family of which no table says what its export writes."""
    return target.format != source.format and isinstance(source, HfCheckpoint) and source.family.export is None


# --- tables


def _tables(target: Checkpoint, claim: Claim, terms: Terms) -> Check:
    """Return whether the target rotates as what it claims to be does, and states a length that goes with it."""
    reading = decoded(target.runtime, target).understood(target.where, target.stated_in)
    wanted = decoded(target.runtime, claim.expected).understood(target.where, target.stated_in)
    alike = target.format == claim.expected.format
    figure, reason = compare_tables(wanted, reading, same_layout=alike)
    if reason:
        by = "; ".join(_keys_apart(target, claim.expected)) if alike else ""
        reason = f"differs from {claim.words}: {reason}{f', by {by}' if by else ''}"
    elif reading.max_position_embeddings not in claim.contexts:
        told = " or ".join(map(str, dict.fromkeys(claim.contexts)))
        reason = f"the context length is {reading.max_position_embeddings}, but {claim.words} gives {told}"
    elif _only_says_more(reading, claim, terms):
        reason = (
            f"the context length is {reading.max_position_embeddings}, but the tables equal the baseline; pass --finetuned "
            "if this model was trained at that length, or --trained-length N if the baseline was"
        )
    shown_figure = figure if math.isfinite(figure) else None
    if reason:
        return Check(TABLES, shown_figure, TABLE_TOLERANCE, FAIL, reason)
    if claim.taken:
        keys_taken = " ".join(f"--stated {key} {AS_IS}" for key in claim.taken)
        why = f"{claim.words}: its lists follow no formula, so they cannot be rebuilt; pass {keys_taken} to accept them"
        return Check(TABLES, None, TABLE_TOLERANCE, NOT_RUN, why)
    words = f"equal to the baseline after {claim.words}" if claim.edits else f"equal to the baseline: {claim.words}"
    return Check(TABLES, shown_figure, TABLE_TOLERANCE, PASS, words)


def _only_says_more(reading: RopeSet, claim: Claim, terms: Terms) -> bool:
    """Return whether a model that rotates states a longer context than its baseline and does not claim anything for it."""
    if claim.plan is None or claim.plan.method != LENGTH or terms.finetuned:
        return False
    meant = any(key.rpartition(".")[2] in (names.MAX_POSITION_EMBEDDINGS, "context_length") for key in terms.stated)
    trained = terms.trained_length is not None and terms.trained_length >= reading.max_position_embeddings
    return not (meant or trained) and any(entry.table is not None for entry in reading.entries.values())


def _keys_apart(target: Checkpoint, expected: Checkpoint) -> list[str]:
    """Return the rope keys that the two state otherwise, with both values."""
    ours, theirs = _rope_keys(target), _rope_keys(expected)
    found = []
    for key in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(key, ABSENT), ours.get(key, ABSENT)
        if one != other:
            found.append(f"{key} {_named(other)} instead of {_named(one)}")
    return found


def _named(value: object) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"{len(value)} numbers"
    return "none" if value is ABSENT else shown(value)


def _rope_keys(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the keys of positions by name; those of a kind of layers that is not the full one with its name in front."""
    if isinstance(checkpoint, GgufCheckpoint):
        words = ("rope.", "attention.temperature")
        front = f"{checkpoint.name}."
        return {
            key.removeprefix(front): keys.plain(value)
            for key, value in checkpoint.values.items()
            if key.startswith(front) and any(word in key for word in words)
        }
    assert isinstance(checkpoint, HfCheckpoint)
    found: dict[str, object] = {}
    read = style.read(checkpoint.config, checkpoint.family, checkpoint.where)
    for kind, entry in read.keys.items():
        front = "" if kind == names.FULL_ATTENTION else f"{kind}."
        every = {names.ROPE_TYPE: entry.rope_type, names.ROPE_THETA: entry.rope_theta, **entry.params}
        found |= {f"{front}{key}": value for key, value in every.items() if value is not None}
    return found


# --- weights, files


def _weights(target: Checkpoint, source: Checkpoint, plan: Plan | None, terms: Terms) -> Check:
    try:
        found = compare_weights(target, source, plan)
    except RopetoolError as error:
        return Check(WEIGHTS, None, None, FAIL, error.without_folders())
    if not found.total:
        return Check(WEIGHTS, None, None, NOT_ASKED, NO_WEIGHTS)
    if not found.differences:
        return Check(WEIGHTS, 0.0, 0.0, PASS, found.sentence(TENSORS_EQUAL))
    verdict = NOT_ASKED if terms.finetuned else FAIL
    meant = "" if terms.finetuned else "; pass --finetuned if they were trained"
    if is_untabled(target, source):  # what the converter computed, and what is wrong, look alike
        verdict, meant = NOT_RUN, f"; {UNTABLED}, and {LOGITS_DECIDE}"
    return Check(WEIGHTS, float(len(found.differences)), 0.0, verdict, found.sentence(TENSORS_EQUAL) + meant)


def _said(target: Checkpoint, source: Checkpoint, expected: Checkpoint) -> keys.Said | RopetoolError:
    try:
        if isinstance(target, HfCheckpoint) and isinstance(expected, HfCheckpoint):
            return keys.of_directories(target, expected)
        assert isinstance(target, GgufCheckpoint)
        # of a directory its own keys: a claim changes those of positions alone, which the tables speak for
        if isinstance(source, HfCheckpoint):
            from ropetool.gguf_model.contents import exported_keys  # a quarter of all modules, for exports alone

            model: Checkpoint = exported_keys(source)
        else:
            model = expected
        assert isinstance(model, GgufCheckpoint)
        return keys.of_models(target, model)
    except RopetoolError as error:
        return error


def _files(said: keys.Said | RopetoolError) -> Check:
    if isinstance(said, RopetoolError):
        return Check(FILES, None, None, FAIL, said.without_folders())
    found = Compared(said.count, said.wrong)
    things = "settings and files equal the baseline"
    return Check(FILES, float(len(said.wrong)), 0.0, FAIL if said.wrong else PASS, found.sentence(things))


def _dress(said: keys.Said | RopetoolError, terms: Terms) -> list[Check]:
    """Return the check of what changes no number, where there is something to say."""
    if isinstance(said, RopetoolError) or not said.dress:
        return []
    verdict = FAIL if terms.strict else NOT_ASKED
    meant = "" if terms.strict else "; pass --strict to fail on this"
    return [Check(DRESS, float(len(said.dress)), 0.0, verdict, "; ".join(said.dress) + meant)]
