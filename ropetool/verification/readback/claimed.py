"""Readback without a record: compare the target with its implied extension, rebuilt from the baseline.

This only reads files and does not run a model.
"""

from __future__ import annotations

import math

from ropetool import names
from ropetool.checkpoint import style
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.tensor_bytes import CountedDifferences
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
    """Return the checks of tables, weights and files of a target without a record, compared with its baseline.

    A GGUF file is compared with the export of its baseline if the baseline is a directory.
    Raises: ConfigError if `terms.stated` has a key that the target does not have.
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
    target: Checkpoint, source: Checkpoint, expected: Checkpoint, terms: Terms, plan: Plan | None
) -> list[Check]:
    """Return the checks of weights, files and cosmetic differences. expected: the source after the plan's extension."""
    weights = _weights(target, source, plan, terms)
    if is_untabled(target, source):
        return [weights, Check(FILES, None, None, NOT_RUN, f"the keys could not be rebuilt: {UNTABLED}")]
    differences = _differences(target, source, expected)
    return [weights, _files(differences), *_dress(differences, terms)]


def is_untabled(target: Checkpoint, source: Checkpoint) -> bool:
    """Return whether target and source have different formats, and ropetool has no export table for the source's family."""
    return target.format != source.format and isinstance(source, HfCheckpoint) and source.family.export is None


# --- tables


def _tables(target: Checkpoint, claim: Claim, terms: Terms) -> Check:
    """Return the check that the target has the tables of its implied extension, and a context length that fits them."""
    reading = decoded(target.runtime, target).understood(target.where, target.stated_in)
    expected = decoded(target.runtime, claim.expected).understood(target.where, target.stated_in)
    alike = target.format == claim.expected.format
    figure, reason = compare_tables(expected, reading, same_layout=alike)
    if reason:
        by = "; ".join(_keys_apart(target, claim.expected)) if alike else ""
        reason = f"differs from {claim.words}: {reason}{f', by {by}' if by else ''}"
    elif reading.max_position_embeddings not in claim.contexts:
        contexts = " or ".join(map(str, dict.fromkeys(claim.contexts)))
        reason = f"the context length is {reading.max_position_embeddings}, but {claim.words} gives {contexts}"
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
    """Return whether only the context length was raised, and the user did not accept this by `terms`."""
    if claim.plan is None or claim.plan.method != LENGTH or terms.finetuned:
        return False
    is_stated = any(key.rpartition(".")[2] in (names.MAX_POSITION_EMBEDDINGS, "context_length") for key in terms.stated)
    trained = terms.trained_length is not None and terms.trained_length >= reading.max_position_embeddings
    return not (is_stated or trained) and any(entry.table is not None for entry in reading.entries.values())


def _keys_apart(target: Checkpoint, expected: Checkpoint) -> list[str]:
    """Return the rope keys with different values in the two, each with both values."""
    ours, theirs = _rope_keys(target), _rope_keys(expected)
    differences = []
    for key in dict.fromkeys([*theirs, *ours]):
        one, other = theirs.get(key, ABSENT), ours.get(key, ABSENT)
        if one != other:
            differences.append(f"{key} {_named(other)} instead of {_named(one)}")
    return differences


def _named(value: object) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"{len(value)} numbers"
    return "none" if value is ABSENT else shown(value)


def _rope_keys(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the rope keys by name. A layer type other than full attention has its name in front of its keys."""
    if isinstance(checkpoint, GgufCheckpoint):
        parts = ("rope.", "attention.temperature")
        front = f"{checkpoint.name}."
        return {
            key.removeprefix(front): keys.plain(value)
            for key, value in checkpoint.values.items()
            if key.startswith(front) and any(word in key for word in parts)
        }
    assert isinstance(checkpoint, HfCheckpoint)
    by_name: dict[str, object] = {}
    rope = style.read(checkpoint.config, checkpoint.family, checkpoint.where)
    for layer_type, entry in rope.keys.items():
        front = "" if layer_type == names.FULL_ATTENTION else f"{layer_type}."
        every = {names.ROPE_TYPE: entry.rope_type, names.ROPE_THETA: entry.rope_theta, **entry.params}
        by_name |= {f"{front}{key}": value for key, value in every.items() if value is not None}
    return by_name


# --- weights, files


def _weights(target: Checkpoint, source: Checkpoint, plan: Plan | None, terms: Terms) -> Check:
    try:
        compared = compare_weights(target, source, plan)
    except RopetoolError as error:
        return Check(WEIGHTS, None, None, FAIL, error.without_folders())
    if not compared.total:
        return Check(WEIGHTS, None, None, NOT_ASKED, NO_WEIGHTS)
    if not compared.differences:
        return Check(WEIGHTS, 0.0, 0.0, PASS, compared.sentence(TENSORS_EQUAL))
    verdict = NOT_ASKED if terms.finetuned else FAIL
    advice = "" if terms.finetuned else "; pass --finetuned if they were trained"
    if is_untabled(target, source):  # a change by the converter looks like an error
        verdict, advice = NOT_RUN, f"; {UNTABLED}, and {LOGITS_DECIDE}"
    return Check(WEIGHTS, float(len(compared.differences)), 0.0, verdict, compared.sentence(TENSORS_EQUAL) + advice)


def _differences(target: Checkpoint, source: Checkpoint, expected: Checkpoint) -> keys.Differing | RopetoolError:
    """Return the differences besides tables and weights, or the error that prevents the comparison."""
    try:
        if isinstance(target, HfCheckpoint) and isinstance(expected, HfCheckpoint):
            return keys.of_directories(target, expected)
        assert isinstance(target, GgufCheckpoint)
        # A claim changes only rope keys, which the check of the tables covers. So the source's own keys suffice.
        if isinstance(source, HfCheckpoint):
            from ropetool.gguf_model.contents import exported_keys  # a quarter of all modules, only for exports

            model: Checkpoint = exported_keys(source)
        else:
            model = expected
        assert isinstance(model, GgufCheckpoint)
        return keys.of_models(target, model)
    except RopetoolError as error:
        return error


def _files(differences: keys.Differing | RopetoolError) -> Check:
    if isinstance(differences, RopetoolError):
        return Check(FILES, None, None, FAIL, differences.without_folders())
    compared = CountedDifferences(differences.count, differences.wrong)
    things = "settings and files equal the baseline"
    return Check(
        FILES, float(len(differences.wrong)), 0.0, FAIL if differences.wrong else PASS, compared.sentence(things)
    )


def _dress(differences: keys.Differing | RopetoolError, terms: Terms) -> list[Check]:
    """Return the check of cosmetic differences, or an empty list without such a difference."""
    if isinstance(differences, RopetoolError) or not differences.dress:
        return []
    verdict = FAIL if terms.strict else NOT_ASKED
    advice = "" if terms.strict else "; pass --strict to fail on this"
    return [Check(DRESS, float(len(differences.dress)), 0.0, verdict, "; ".join(differences.dress) + advice)]
