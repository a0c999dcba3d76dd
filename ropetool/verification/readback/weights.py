"""Comparison of the tensors of two checkpoints: equal, rounded to a different type, or changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ropetool.checkpoint.gguf import patch_of
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.checkpoint.tensor_bytes import CountedDifferences, StoredTensor, compare_tensors
from ropetool.errors import PlanMismatch
from ropetool.plans.plan import Plan
from ropetool.weights.edits import by_tensor

# Tensors with frequencies. The check of the decoded tables covers them.
TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Root mean square error of a type, divided by the root mean square of the numbers. Measured with ggml's quantiser on 64
# rows of 2,048 numbers with Student's t distribution with 4 degrees of freedom, whose tails are as heavy as in any trained
# matrix. Gaussian numbers, and the weights of the embedded model, have 0.74 to 0.96 of this error.
TYPE_ERROR = {
    "Q8_0": 0.0074, "Q6_K": 0.0226, "Q5_K": 0.0434, "Q5_1": 0.0410, "Q5_0": 0.0569, "Q4_K": 0.0867, "Q4_1": 0.0851,
    "Q4_0": 0.1133, "IQ4_NL": 0.0923, "IQ4_XS": 0.0936, "MXFP4": 0.1318, "Q3_K": 0.1783, "IQ3_S": 0.1638,
    "IQ3_XXS": 0.2060, "Q2_K": 0.3034, "IQ2_S": 0.3139,
}  # fmt: skip
ALLOWED = 1.25  # times this error, because an importance matrix makes the error of some numbers larger


class Named(Mapping[str, bytes]):
    """The expected bytes of each tensor in a plan: a vector, or the source's numbers with the plan's change.

    Raises: PlanMismatch for a tensor that the source does not have.
    """

    def __init__(self, plan: Plan, source: Checkpoint) -> None:
        self._vectors = patch_of(plan.edits).tensors if plan.format == "gguf" else {}
        self._changes, self._bake_dtype = by_tensor(plan.tensors), plan.bake_dtype
        self._stored = source.stored if self._changes else {}

    def __getitem__(self, name: str) -> bytes:
        if name in self._vectors:
            return self._vectors[name].astype("<f4").tobytes()
        change = self._changes[name]
        if name not in self._stored:
            raise PlanMismatch("the plan changes this tensor, but the source does not contain it", where=name)
        from ropetool.weights.writing import baked_bytes  # only for plans that bake

        return baked_bytes(name, self._stored[name], change, self._bake_dtype)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._vectors, **self._changes})

    def __len__(self) -> int:
        return len({**self._vectors, **self._changes})


def compare_weights(target: Checkpoint, source: Checkpoint, plan: Plan | None) -> CountedDifferences:
    """Return the tensors of the target that differ from the source's tensors with the plan's changes.

    A tensor of a different type may differ by the rounding errors of both types. Tensors with tables are not compared.
    Raises: CorruptFile.
    """
    if target.format != source.format:
        return _converted(target, source)
    ours, theirs = (_without_tables(each.stored) for each in (target, source))
    ours = {name: tensor for name, tensor in ours.items() if name in theirs or not _is_tied_head(name, target, ours)}
    named = {} if plan is None else {name: data for name, data in Named(plan, source).items() if name not in TABLES}
    other_type = {
        name for name in ours.keys() & theirs.keys() - named.keys()
        if ours[name].dtype != theirs[name].dtype and ours[name].shape == theirs[name].shape
    }  # fmt: skip
    alike = [{name: each[name] for name in each if name not in other_type} for each in (ours, theirs)]
    compared = compare_tensors(alike[0], alike[1], named)
    rounded = [f"{name} {problem}" for name in sorted(other_type) if (problem := _rounding(ours[name], theirs[name]))]
    return CountedDifferences(compared.total + len(other_type), (*compared.differences, *rounded))


def _is_tied_head(name: str, target: Checkpoint, stored: Mapping[str, StoredTensor]) -> bool:
    """Return whether a tensor is a copy of the embedding, which some programs store although the head is tied to it."""
    if not isinstance(target, HfCheckpoint) or target.config.get("tie_word_embeddings") is not True:
        return False
    if not name.endswith("lm_head.weight"):
        return False
    embeddings = [tensor for other, tensor in stored.items() if other.endswith("embed_tokens.weight")]
    return len(embeddings) == 1 and not compare_tensors({name: stored[name]}, {name: embeddings[0]}).differences


def _converted(target: Checkpoint, source: Checkpoint) -> CountedDifferences:
    """Return the tensors of a GGUF file that differ from the directory that it was converted from."""
    from ropetool.comparison import compare  # only for two different formats
    from ropetool.comparison.relations import REQUANTISED

    tensors = [each for each in compare(source.path, target.path).tensors if each.name not in TABLES]
    problems = []
    for each in tensors:
        relation = each.relation
        if relation.kind == REQUANTISED:
            problem = _beyond_rounding(relation.rms, relation.dtypes[1], relation.dtypes[0])
        else:
            problem = f"is {relation.kind} {relation.detail or each.reason}".rstrip() if each.differs else ""
        if problem:
            problems.append(f"{each.other or each.name} {problem}")
    return CountedDifferences(len(tensors), tuple(problems))


def _without_tables(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {name: tensor for name, tensor in stored.items() if name not in TABLES}


def _rounding(tensor: StoredTensor, expected: StoredTensor) -> str:
    """Return why a tensor cannot be the expected one rounded to its type, or "" if it can."""
    from ropetool.comparison.reading import Matrix

    ours, theirs = Matrix((tensor,)), Matrix((expected,))
    types = f"{tensor.dtype} instead of {expected.dtype}"
    if not (ours.is_readable and theirs.is_readable):
        return f"is {types}; ropetool cannot decode both, so their numbers were not compared"
    squares = size = 0.0
    for part in theirs.chunks():
        a, b = theirs.read(*part), ours.read(*part)
        squares += float(((a - b) ** 2).sum())
        size += float((a**2).sum())
    error = math.sqrt(squares / size) if size else math.inf if squares else 0.0
    return _beyond_rounding(error, tensor.dtype, expected.dtype)


def _beyond_rounding(error: float, dtype: str, expected_dtype: str) -> str:
    """Return a message if the error is larger than the rounding errors of both types, else "".

    error: the root mean square error, divided by the root mean square of the numbers.
    """
    limit = math.hypot(_type_error(dtype), _type_error(expected_dtype))
    if error <= limit:
        return ""
    return f"is {dtype} instead of {expected_dtype}, with an error of {error:.2g}; these types allow {limit:.2g}"


def _type_error(dtype: str) -> float:
    """Return the largest rounding error of a type, divided by the root mean square of the numbers."""
    from ropetool.comparison.relations import ROUNDING

    if dtype in ROUNDING:
        return 2.0 ** -ROUNDING[dtype][0]  # half a step of the last digit
    return ALLOWED * TYPE_ERROR.get(dtype, 0.0)
