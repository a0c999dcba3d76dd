"""compressed-tensors: whole numbers or FP8 with scales, in several layouts. Its own library unpacks them, on a CPU.

The library multiplies in the type of the scales. Here the scales are float32, so that no number is rounded to 16 bits.
Source: compressed-tensors 0.20.1, compressors/ and quantization/lifecycle/forward.py; transformers 5.23.0,
integrations/compressed_tensors.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import CorruptFile, MissingDependency, RopetoolError, UnsupportedDtype, lacking
from ropetool.escaping import install_line
from ropetool.files import dtypes
from ropetool.files.hf.jsontext import shown
from ropetool.files.regular import open_regular
from ropetool.names import QUANTIZATION_CONFIG
from ropetool.packed.base import PackedFormat, Part, Singles, Unpacked, python, unreadable

METHOD = "compressed-tensors"
WHOLE, BYTES = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (WHOLE, *BYTES)
PACKED, PLAIN, SCALE, ZERO, SHAPE = "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape"
# Scales of inputs, outputs and cached keys and values, which a GGUF file has no place for.
UNUSED = (
    ".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".k_scale", ".v_scale", ".q_scale",
    ".k_zero_point", ".v_zero_point", ".q_zero_point",
)  # fmt: skip
_PACKAGES = ("compressed_tensors", "torch", "transformers")
EXTRA = "packed"  # of pyproject.toml
_WORD = 32  # bits; this many rows of packed zeros end at a whole word
_TORCH = {
    "I32": "int32", "I8": "int8", "U8": "uint8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_ZEROS = {"I32": "<i4", "I8": "i1", "U8": "u1"}
# Parts of layouts that ropetool does not unpack: an activation order, and sparse weights.
_OTHERS = (PACKED, ZERO, SHAPE, "weight_g_idx", "weight_global_scale", "bitmask", "compressed", "row_offsets")
# The library dequantises each weight that it is not told to ignore, and stops at one without a scale.
_CODE = (
    "from pathlib import Path; from safetensors import safe_open; "
    "from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer as D, convert_checkpoint as c; "
    "names = {{n for f in Path({source}).glob('*.safetensors') for n in safe_open(f, 'np').keys()}}; "
    "plain = [n[:-7] for n in names if n.endswith('.weight') and n + '_scale' not in names]; "
    "c({source}, {copy}, D({source}, ignore=plain))"
)


@dataclass(frozen=True)
class _Group:
    """A group of modules with the same layout.

    form: the layout.
    scheme: the library's settings of the group.
    """

    form: str
    scheme: Any

    @property
    def weights(self) -> Any:
        """The library's settings of the weights; None if they are not packed."""
        return self.scheme.weights

    @property
    def strategy(self) -> str:
        """What shares a scale: tensor, channel, group or block."""
        return str(getattr(self.weights.strategy, "value", self.weights.strategy))


@dataclass(frozen=True)
class Module:
    """The unpacking of a weight.

    parts: the scales, and the zeros of asymmetric weights.
    block: the number of rows that share a row of scales; 1 for a scale or several for each row, 0 for one scale in all.
    """

    weight: Part
    shape: tuple[int, int]
    parts: Mapping[str, Part]
    group: _Group
    block: int

    @property
    def dtype(self) -> str:
        return self.group.form

    @property
    def nearest(self) -> str:
        return "f16" if self.parts[SCALE].stored.dtype == "F16" else "bf16"

    @property
    def together(self) -> int:
        return math.lcm(self.block or 1, _WORD)

    def numbers(self, raw: npt.NDArray[np.uint8], first: int, parts: Mapping[str, bytes]) -> Singles:
        import torch
        from compressed_tensors.compressors import BaseCompressor

        count = raw.size * self.shape[0] // (self.weight.stored.end - self.weight.stored.begin)
        name = PACKED if self.group.form == WHOLE else PLAIN
        dtype = getattr(torch, _TORCH[self.weight.stored.dtype])
        state = {
            name: torch.from_numpy(raw).view(dtype).reshape(count, -1),
            SCALE: torch.from_numpy(self._scales(parts[SCALE], first, count)),
        }
        if name == PACKED:
            state[SHAPE] = torch.tensor([count, self.shape[1]])
        if ZERO in parts:
            state[ZERO] = torch.from_numpy(self._zeros(parts[ZERO], first, count))
        compressor = BaseCompressor.get_value_from_registry(self.group.form)
        numbers: Singles = compressor.decompress(state, self.group.scheme)[PLAIN].numpy()
        return numbers

    def _scales(self, raw: bytes, first: int, count: int) -> Singles:
        stored = self.parts[SCALE].stored
        scales: Singles = dtypes.decode(raw, stored.dtype).astype(np.float32).reshape(stored.shape or (1,))
        return scales[self._of_rows(first, count)]

    def _zeros(self, raw: bytes, first: int, count: int) -> npt.NDArray[Any]:
        stored = self.parts[ZERO].stored
        zeros: npt.NDArray[Any] = np.frombuffer(raw, _ZEROS[stored.dtype]).reshape(stored.shape or (1,))
        if stored.dtype != "I32":
            return np.array(zeros[self._of_rows(first, count)])
        bits = self.group.weights.num_bits
        return np.array(zeros[first * bits // _WORD : -(-(first + count) * bits // _WORD)])

    def _of_rows(self, first: int, count: int) -> slice:
        """Return the place of the scales or zeros of these rows."""
        return slice(first // self.block, -(-(first + count) // self.block)) if self.block else slice(None)


def _groups(quantization: Mapping[str, Any], where: str) -> list[_Group]:
    """Return the groups of modules. Raises: CorruptFile for settings that the library does not read."""
    from compressed_tensors.quantization import QuantizationConfig

    try:
        config = QuantizationConfig.model_validate(quantization)
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        sentence = " ".join(str(error).split())
        raise CorruptFile(
            f"compressed-tensors cannot read quantization_config: {sentence:.200}", where=where
        ) from error
    groups = []
    for scheme in config.config_groups.values():
        form = scheme.format or config.format
        groups.append(_Group(str(getattr(form, "value", form)), scheme))
    return groups


def _check_readable(quantization: Mapping[str, Any], where: str) -> None:
    """Raise an error unless export unpacks all groups of modules.

    Raises: MissingDependency without compressed-tensors; UnsupportedDtype for a layout without a test here; CorruptFile.
    """
    missing = lacking(_PACKAGES)
    if missing:
        raise MissingDependency(
            f"export needs compressed-tensors to unpack its weights: {missing}",
            where=where,
            try_=install_line(EXTRA),
        )
    for key in ("sparsity_config", "transform_config"):
        if quantization.get(key):
            raise _other(f"with a {key}", where)
    for group in _groups(quantization, where):
        if group.form not in FORMATS or group.weights is None:
            raise _other(f"in the layout {shown(group.form)}", where)
        if group.strategy not in ("tensor", "channel", "group", "block"):
            raise _other(f"with a scale for each {group.strategy}", where)


def _other(what: str, where: str) -> RopetoolError:
    source = str(Path(where).parent)
    return unreadable(METHOD, f"weights {what}", where, python(_CODE, source=source, copy=f"{source}-bf16"))


def _unpack(held: Mapping[str, Part], quantization: Mapping[str, Any]) -> Unpacked:
    """Return the packed matrices.

    Raises: CorruptFile for a matrix without settings, with missing parts, or with scales that do not cover it;
    UnsupportedDtype for types that the library does not unpack.
    """
    first = next(iter(held.values()), None)
    groups = _groups(quantization, "" if first is None else str(first.path.parent / "config.json"))
    matrices: dict[str, tuple[Part, Module]] = {}
    used = {name for name in held if name.endswith(UNUSED)}
    for name in held:
        if not name.endswith(f".{SCALE}"):
            continue
        module = name.removesuffix(f".{SCALE}")
        unpacking = _module(module, held, groups)
        matrices[f"{module}.{PLAIN}"] = (unpacking.weight, unpacking)
        used |= {f"{module}.{part}" for part in (PACKED, PLAIN, SCALE, ZERO, SHAPE)}
    for name, part in held.items():
        if name not in used and name.endswith(tuple(f".{part}" for part in _OTHERS)):
            raise UnsupportedDtype(
                f"{name} belongs to a layout that ropetool does not unpack", where=str(part.path),
                try_="export the checkpoint before quantisation",
            )  # fmt: skip
    return Unpacked(matrices, frozenset(used))


def _module(module: str, held: Mapping[str, Part], groups: Sequence[_Group]) -> Module:
    scale = held[f"{module}.{SCALE}"]
    group = _group_of(module, groups)
    if group is None:
        raise CorruptFile(f"no group in quantization_config targets {module}", where=str(scale.path))
    name = f"{module}.{PACKED if group.form == WHOLE else PLAIN}"
    weight = held.get(name)
    if weight is None:
        raise CorruptFile(f"no weight file contains {name}, which {module}.{SCALE} requires", where=str(scale.path))
    stored, bits = weight.stored, group.weights.num_bits
    types = ("I32",) if group.form == WHOLE else tuple(_TORCH)[1:]
    if stored.dtype not in types or len(stored.shape) != 2 or scale.stored.dtype not in dtypes.STORAGE:
        raise UnsupportedDtype(
            f"{name} has type {stored.dtype} and shape {list(stored.shape)}, with scales in {scale.stored.dtype}; "
            f"{group.form} needs a matrix of {' or '.join(types)}, with scales in {', '.join(dtypes.STORAGE)}",
            where=str(weight.path),
        )
    parts = {SCALE: scale}
    if not group.weights.symmetric:
        zero = held.get(f"{module}.{ZERO}")
        if zero is None:
            raise CorruptFile(
                f"no weight file contains {module}.{ZERO}, which asymmetric weights require", where=str(scale.path)
            )
        parts[ZERO] = zero
    shape = _packed_shape(held.get(f"{module}.{SHAPE}"), name, weight) if group.form == WHOLE else stored.shape
    if group.form == WHOLE and stored.shape != (shape[0], -(-shape[1] * bits // _WORD)):
        raise CorruptFile(
            f"{name} has shape {list(stored.shape)}; a matrix of {list(shape)} in {bits} bits requires "
            f"{[shape[0], -(-shape[1] * bits // _WORD)]}",
            where=str(weight.path),
        )
    rows, columns = shape
    return Module(weight, (rows, columns), parts, group, _rows_of_a_scale(parts, (rows, columns), group))


def _packed_shape(shape: Part | None, name: str, weight: Part) -> tuple[int, int]:
    """Return the rows and columns of a packed matrix, which are in a tensor of their own."""
    if shape is None or shape.stored.dtype != "I64" or shape.stored.shape != (2,):
        raise CorruptFile(
            f"{name} needs its two sizes as I64 in {name.removesuffix(PACKED)}{SHAPE}", where=str(weight.path)
        )
    with open_regular(shape.path) as file:
        file.seek(shape.stored.begin)
        rows, columns = np.frombuffer(file.read(16), "<i8").tolist()
    return rows, columns


def _rows_of_a_scale(parts: Mapping[str, Part], shape: tuple[int, int], group: _Group) -> int:
    """Return how many rows share a row of scales, 0 for one scale in all. Raises: CorruptFile for another number of scales."""
    rows, columns = shape
    down, across = group.weights.block_structure if group.strategy == "block" else (1, columns)
    if group.strategy == "group":
        across = group.weights.group_size
    whole = group.strategy == "tensor"
    expected = (1, 1) if whole else (-(-rows // down), -(-columns // across))
    for part in parts.values():
        counts, wanted = part.stored.shape, expected
        if part.stored.dtype == "I32" and not whole:  # packed zeros
            wanted = (-(-rows * group.weights.num_bits // _WORD), expected[1])
        if math.prod(counts) != math.prod(wanted) or (not whole and len(counts) == 2 and counts != wanted):
            raise CorruptFile(
                f"{part.stored.name} has shape {list(counts)}; {group.strategy} scales of a matrix of {list(shape)} "
                f"require {list(wanted)}",
                where=str(part.path),
            )
    return 0 if whole else down


def _group_of(module: str, groups: Sequence[_Group]) -> _Group | None:
    """Return the group of a module: by its name if a target names it, else by its class."""
    from compressed_tensors.utils.match import match_name

    named = (group for group in groups if any(match_name(module, target) for target in group.scheme.targets))
    by_class = (group for group in groups if {"Linear", "Embedding"} & {*group.scheme.targets})
    return next(named, None) or next(by_class, None)


def _not_run(checkpoint: HfCheckpoint, gpu: bool) -> str:
    """Return why transformers does not run it: it would unpack matrices with the settings of a different group."""
    if len(set(_settings(checkpoint.config[QUANTIZATION_CONFIG]))) > 1:
        return (
            "its groups have different settings, and transformers unpacks all matrices with the settings of one group"
        )
    return ""


def _settings(quantization: Mapping[str, Any]) -> Iterator[str]:
    groups = quantization.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping):
            yield json.dumps([group.get("weights"), group.get("format")], sort_keys=True)


FORMAT = PackedFormat(
    METHOD, _check_readable, _unpack, packages=("compressed_tensors",), extra=EXTRA, not_run=_not_run, dequantize=True
)
