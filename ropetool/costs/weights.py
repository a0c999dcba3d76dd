"""The tensors of a checkpoint as a cost: numbers and bytes, and the share that a token is multiplied by.

The sizes are read from the headers of the files. If the weights are missing, they follow from the family's tensor
table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

from ropetool import names
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import RopetoolError
from ropetool.families.tensors import Count
from ropetool.files.gguf import ValueType
from ropetool.gguf_model import mxfp4
from ropetool.gguf_model.shapes import read_model, tensors
from ropetool.gguf_model.shapes.reading import count
from ropetool.gguf_model.wrapped import TIED, text_config, text_names
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.packed import fp8
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Refuses
from ropetool.runtimes.kv_cache import DTYPE_BYTES, dtype_of
from ropetool.runtimes.llama_cpp import folding
from ropetool.runtimes.llama_cpp.architectures import EXPERT_COUNT
from ropetool.runtimes.llama_cpp.layers import ModelKeys, layer_count, value_of

USED = "expert_used_count"
_NUMBERED = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")
_EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.(?:input|output)_linear\.|_exps\.")
PER_LAYER = "embed_tokens_per_layer.weight"


@dataclass(frozen=True)
class Outer:
    """The names of tensors outside the matrices of the layers.

    embedding, head: the names.
    looked_up: the endings of other tensors that are looked up row by row.
    drafting: the beginnings of tensors that only draft tokens.
    """

    embedding: str
    head: str
    looked_up: tuple[str, ...]
    drafting: tuple[str, ...] = ()


IN_GGUF = Outer("token_embd.weight", "output.weight", ("position_embd.weight", "per_layer_token_embd.weight"))


@dataclass(frozen=True)
class Tensor:
    """A tensor.

    name: its name in the text model. Empty for a tensor of any other part.
    numbers: the numbers that it represents. 0 for scales.
    nbytes: its bytes. None if only the file could show them.
    dtype: its type.
    matrix: whether it has at least two dimensions.
    """

    name: str
    numbers: int
    nbytes: int | None
    dtype: str
    matrix: bool


@dataclass(frozen=True)
class Products:
    """The numbers of a model, by their use.

    always: in the matrices of the layers, without experts.
    experts: in all experts.
    used, held: the experts that a token uses, and all experts of a layer.
    head: in the last matrix, which only tokens with logits are multiplied by.
    tied: whether the head is the embedding.
    looked_up: in the tensors that are looked up row by row.
    drafts: in layers that only draft tokens.
    others: in parts outside the text model.
    vectors: in norms, biases and other vectors.
    """

    always: int
    experts: int
    used: int
    held: int
    head: int
    tied: bool
    looked_up: int
    drafts: int
    others: int
    vectors: int

    @property
    def of_experts(self) -> int:
        """Return how many numbers of experts a token is multiplied by."""
        return int(Fraction(self.used, self.held) * self.experts) if self.experts else 0

    @property
    def in_layers(self) -> int:
        """Return how many numbers a token is multiplied by, without the head."""
        return self.always + self.of_experts

    @property
    def active(self) -> int:
        """Return the number of active parameters, in the usual way of counting."""
        return self.in_layers + self.vectors + self.looked_up + (0 if self.tied else self.head)


@dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint.

    sizes_from: where the sizes come from.
    tensors: the number of tensors.
    numbers: their numbers. None if unknown.
    nbytes: their bytes. None if unknown.
    by_type: the bytes of each type. Empty if unknown.
    products: the numbers by their use. None if unknown.
    why: why something is unknown. Empty if all is known.
    """

    sizes_from: str
    tensors: int
    numbers: int | None
    nbytes: int | None
    by_type: Mapping[str, int]
    products: Products | None
    why: str = ""


def of(checkpoint: Checkpoint, rope: RopeSet | None) -> Weights:
    """Return the tensors of a checkpoint. Raises: RopetoolError if files cannot be read, or the sizes are unknown."""
    return _of_gguf(checkpoint) if isinstance(checkpoint, GgufCheckpoint) else _of_hf(checkpoint, rope)


def _of_gguf(view: GgufCheckpoint) -> Weights:
    listed = [Tensor(t.name, prod(t.shape), t.nbytes, t.type_name, len(t.shape) > 1) for t in view.tensors.values()]
    known = _sized(listed, "the file's header" if len(view.files) == 1 else "the files' headers")
    if view.name in folding.TWO_STACKS:
        return replace(known, why=f"layers of {view.name} run several times")
    try:
        model = ModelKeys.of(view)
        layers, experts = layer_count(model), int(model.get(EXPERT_COUNT, 0))
        used = int(value_of(view, model.key(USED), ValueType.U32) or 0)
    except Refuses as refusal:
        return replace(known, why=str(refusal))
    return _multiplied(known, listed, layers, IN_GGUF, used, experts)


def _of_hf(checkpoint: HfCheckpoint, rope: RopeSet | None) -> Weights:
    family, files = checkpoint.family, checkpoint.files
    table, quantization = family.export, checkpoint.config.get(QUANTIZATION_CONFIG)
    if files is not None and files.weights and all(path.is_file() for path in files.weights):
        listed = list(_listed_in_files(checkpoint, quantization))
        known = _sized(listed, "the headers of the safetensors files")
        if quantization is not None and not fp8.is_fp8(quantization) and not mxfp4.is_mxfp4(quantization):
            return replace(known, numbers=None, why=f"its {QUANTIZATION_CONFIG} packs several numbers into one")
    else:
        listed = list(_listed_in_table(checkpoint, rope))
        rest = ", and the size of its other parts is unknown" if family.wrapped else ""
        known = _sized(listed, f"the tensor table of {family.name}, because the weights are missing{rest}")
    if table is None:
        return replace(known, why=f"ropetool has no tensor table of {family.name}")
    config, where = text_config(checkpoint), checkpoint.where
    layers = count(config, Count(names.NUM_HIDDEN_LAYERS), where)
    used, experts = (
        count(config, table.counts[size], where) if size in table.counts else 0 for size in ("used", "experts")
    )
    head = next((row.hf for row in table.outer if row.when == "untied"), "")
    return _multiplied(
        known, listed, layers, Outer(table.outer[0].hf, head, (PER_LAYER,), table.drafting), used, experts
    )


def _listed_in_files(checkpoint: HfCheckpoint, quantization: Any) -> Iterator[Tensor]:
    """Yield the tensors in the files. Scales have bytes, but represent no numbers."""
    stored = checkpoint.stored
    own = text_names(stored) if checkpoint.family.wrapped else {name: name for name in stored}
    for name, tensor in stored.items():
        numbers = prod(tensor.shape)
        if fp8.is_fp8(quantization) and name.endswith((fp8.SCALES, *fp8.UNUSED)):
            numbers = 0
        if mxfp4.is_mxfp4(quantization) and name.endswith((mxfp4.CODES, mxfp4.SCALES)):
            numbers = 2 * numbers if name.endswith(mxfp4.CODES) else 0  # two codes in a byte
        yield Tensor(own.get(name, ""), numbers, tensor.nbytes, tensor.dtype, len(tensor.shape) > 1)


def _listed_in_table(checkpoint: HfCheckpoint, rope: RopeSet | None) -> Iterator[Tensor]:
    """Yield the tensors that follow from the family's table and the config.

    Raises: RopetoolError if there is no table.
    """
    family, config = checkpoint.family, dict(text_config(checkpoint))
    if family.export is None or rope is None:
        raise RopetoolError(f"the weights are missing, and ropetool has no tensor table of {family.name}")
    if family.wrapped and not any(TIED in part for part in (checkpoint.config, checkpoint.section)):
        config[TIED] = family.export.tied  # neither the config nor a stored tensor shows it
    quantised = config.pop(QUANTIZATION_CONFIG, None) is not None
    entry = rope.entries[names.FULL_ATTENTION]
    model = read_model(family, config, family.gguf_architecture, entry.head_dim, entry.rotary_dim, checkpoint.where)
    dtype = dtype_of(checkpoint.config, checkpoint.section) or "two bytes each"
    # Some source tensors become two tensors of the file.
    shapes = {name: exported.shape for exported in tensors(model, False) for name in exported.sources}
    for name, shape in shapes.items():
        numbers = prod(shape)
        nbytes = None if quantised else numbers * DTYPE_BYTES.get(dtype, 2)
        yield Tensor(name, numbers, nbytes, dtype, len(shape) > 1)


def _sized(listed: Sequence[Tensor], sizes_from: str) -> Weights:
    by_type: Counter[str] = Counter()
    for tensor in listed:
        by_type[tensor.dtype] += tensor.nbytes or 0
    known = all(tensor.nbytes is not None for tensor in listed)
    numbers, nbytes = sum(tensor.numbers for tensor in listed), sum(by_type.values())
    return Weights(sizes_from, len(listed), numbers, nbytes if known else None, by_type if known else {}, None)


def _multiplied(
    known: Weights, listed: Sequence[Tensor], layers: int, outer: Outer, used: int, experts: int
) -> Weights:
    """Return the weights with the sums of their numbers by use."""
    sums: Counter[str] = Counter()
    for tensor in listed:
        sums[_part(tensor, layers, outer)] += tensor.numbers
    if not sums["embedding"]:
        return replace(known, why=f"the embedding {outer.embedding} is missing")
    if sums["experts"] and not 0 < used <= experts:
        return replace(known, why=f"the config uses {used} of {experts} experts, which is not possible")
    tied = not sums["head"]
    return replace(
        known,
        products=Products(
            sums["always"], sums["experts"], used, experts, sums["embedding"] if tied else sums["head"], tied,
            sums["embedding"] + sums["looked_up"], sums["drafts"], sums["others"], sums["vectors"],
        ),
    )  # fmt: skip


def _part(tensor: Tensor, layers: int, outer: Outer) -> str:
    """Return the use of a tensor: a field of `Products`, or "embedding"."""
    name, numbered = tensor.name, _NUMBERED.search(tensor.name)
    if not name:
        return "others"
    if name.startswith(outer.drafting) or (numbered is not None and int(numbered[1]) >= layers):
        return "drafts"
    if name in (outer.embedding, outer.head):
        return "embedding" if name == outer.embedding else "head"
    if name.endswith(outer.looked_up):
        return "looked_up"
    if not tensor.matrix or name.endswith(("_bias", ".bias")):  # the biases of experts are rows of a matrix
        return "vectors"
    return "experts" if _EXPERTS.search(name) else "always"
