"""The keys that describe the model of a GGUF file: general.* from model card and folder name, sizes from the config."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint import provenance
from ropetool.errors import ConfigError, RopetoolError
from ropetool.files import hub
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf import read_optional_object
from ropetool.files.hub import HubId
from ropetool.files.regular import open_regular
from ropetool.gguf_model.outtypes import OUTTYPES
from ropetool.gguf_model.shapes import ModelShape, model_keys
from ropetool.gguf_model.tensors import Layout

if TYPE_CHECKING:
    from gguf import GGUFWriter, Metadata

MAX_CARD = 4 << 20  # bytes of README.md; the largest known has a tenth of this
MAX_FRONT_MATTER = 128 << 10  # bytes, which PyYAML reads in a second
HUB = "https://huggingface.co"
BOM = b"\xef\xbb\xbf"
_FRONT_END = re.compile(rb"\n---\r?(?:\n|\Z)")
_PHI3, _PHI3_TOKENS = re.compile("phi-?3", re.IGNORECASE), ("</s>", "<unk>", "<s>", "<|endoftext|>")
_FACTOR = re.compile(r"-[0-9]+(?:\.[0-9]+)?x(?=-|$)")
CARD, GENERATION_CONFIG = "README.md", "generation_config.json"


def model_values(model: ModelShape, layout: Layout) -> dict[str, Value]:
    """Return the sizes and constants of the model under its architecture's name, and general.file_type.

    The only rotary keys are the number of rotating channels and the sections.
    """
    file_type = Value.of(ValueType.U32, OUTTYPES[layout.outtype].file_type)
    return {**model_keys(model), "general.file_type": file_type}


def general_values(source: Path, model: ModelShape, layout: Layout) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the general.* keys, and notes.

    The gguf package's rules apply, as in llama.cpp's converter: first the model card, then config.json, then the folder
    name. If a card cannot be read, its keys are missing and a note gives the reason.
    """
    origin = hub.origin(source)
    called = origin.name if origin is not None else source.resolve().name  # Path(".") has no name
    plain = _without_factor(called, source)
    with _named(source.resolve(), plain) as named:
        return _general_values(named, model, layout, origin, called)


def _without_factor(called: str, source: Path) -> str:
    """Return the model's name without ropetool's extension factor: the gguf package reads `8x` as a fine-tune."""
    records = list(provenance.lineage(source))
    plain = called
    for record in records:
        plain = provenance.unsuffixed(plain, record)
    return (_FACTOR.sub("", plain) or called) if records else called


def _general_values(
    source: Path, model: ModelShape, layout: Layout, origin: HubId | None, called: str
) -> tuple[dict[str, Value], tuple[str, ...]]:
    import gguf

    total = sum(math.prod(placed.info.shape) for placed in layout.tensors)
    label = _size_label(model, layout, total)
    # The package's errors for files of authors: invalid YAML, invalid UTF-8, or a list instead of text.
    broken = (
        gguf.metadata.yaml.YAMLError, RopetoolError, OSError, TypeError, ValueError, LookupError, AttributeError,
        RecursionError,
    )  # fmt: skip
    try:
        _check_bounds(source)
        known = gguf.Metadata.load(None, source, None, total)
        return _general(known, source, label, model.arch, origin, called), ()
    except broken as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    known = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), {}, {}, source, total)
    note = f"general.* keys such as name and licence come from the folder only, not from {CARD} and {GENERATION_CONFIG}: {reason}"
    return _general(known, source, label, model.arch, origin, called), (note,)


@contextmanager
def _named(source: Path, name: str) -> Iterator[Path]:
    """Yield the folder under this name, because folders in the Hub's cache are named after commits."""
    if name == source.name:
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, name)
        link.symlink_to(source, target_is_directory=True)
        yield link


def _general(
    known: Metadata, source: Path, size_label: str, arch: str, origin: HubId | None, called: str
) -> dict[str, Value]:  # fmt: skip
    import gguf

    if called != source.name and known.name == gguf.Metadata.id_to_title(
        source.name
    ):  # the folder's name, not a card's
        known.name = gguf.Metadata.id_to_title(called)
    known.name = known.name or called
    known.size_label = known.size_label or size_label
    if origin is not None:
        known.organization = known.organization or gguf.Metadata.id_to_title(origin.repo.partition("/")[0])
        known.source_repo_url = known.source_repo_url or f"{HUB}/{origin.repo}"

    def fill(writer: GGUFWriter) -> None:
        writer.add_type(gguf.GGUFType.MODEL)
        known.set_gguf_meta_model(writer)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    return collected(arch, fill)


def collected(arch: str, fill: Callable[[GGUFWriter], None]) -> dict[str, Value]:
    """Return the keys that `fill` sets in the gguf package's writer, which has the spelling and type of each key."""
    import gguf

    writer = gguf.GGUFWriter(None, arch)
    fill(writer)
    return {key: _value(ValueType(entry.type), entry.value) for key, entry in writer.kv_data[0].items()}


def _value(value_type: ValueType, value: Any) -> Value:
    if value_type is ValueType.ARR:  # all of these arrays are text: tags, languages and template names
        return Value.array(ValueType.STR, map(_text, value))
    return Value.of(value_type, _text(value) if value_type is ValueType.STR else value)


def _text(value: Any) -> str:
    """Return a value of the model card as text, because YAML reads some words as numbers, dates or booleans."""
    if isinstance(value, (list, dict)):
        raise ConfigError(f"{value!r} must be text")
    if isinstance(value, bool):  # "no" is Norwegian
        return "yes" if value else "no"
    return str(value)


def _check_bounds(source: Path) -> None:
    """Raise an error for files that the package would read without a limit, or that would keep it busy for minutes."""
    read_optional_object(source / GENERATION_CONFIG)
    card = source / CARD
    if not card.is_file():
        return
    with open_regular(card) as file:
        head = file.read(MAX_FRONT_MATTER)
    front = _FRONT_END.split(head, maxsplit=1)[0] if head.startswith(b"---") else b""
    if card.stat().st_size > MAX_CARD or len(front) == MAX_FRONT_MATTER:
        raise ConfigError(
            f"is too large: at most {MAX_CARD:,} bytes, {MAX_FRONT_MATTER:,} of them front matter, are read", where=CARD
        )
    if head.removeprefix(BOM).lstrip().startswith(b"---") and not front:
        raise ConfigError("its front matter must begin in the first line", where=CARD)
    if _repeats(front):
        raise ConfigError("its front matter uses YAML references, which ropetool does not expand", where=CARD)


def _repeats(front: bytes) -> bool:
    """Return whether the YAML has references to its parts.

    Nine references at each of twelve levels make 9 to the 12th parts.
    """
    import gguf

    yaml = gguf.metadata.yaml
    text = front.removeprefix(b"---").decode(errors="replace").replace("\t", "  ")  # as in the package
    return b"&" in front and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))


def _size_label(model: ModelShape, layout: Layout, total: int) -> str:
    """Return the size label of the model, such as 8x7B for experts. It counts the shared parameters and one expert."""
    import gguf

    sizes = [("_exps." in p.info.name and len(p.info.shape) > 2, math.prod(p.info.shape)) for p in layout.tensors]
    expert = sum(size // model.experts for joined, size in sizes if joined)
    shared = sum(size for joined, size in sizes if not joined)
    label: str = gguf.size_label(total, shared, expert, model.experts)
    return label


def loadable(values: Mapping[str, Value], tokens: Value) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the keys with a name that lets llama.cpp load this vocabulary, and a note if the name had to change.

    If the name contains phi-3, llama.cpp requires four tokens and fails without them (src/llama-vocab.cpp).
    """
    name = str(values["general.name"].decode())
    held = tokens.decode() if _PHI3.search(name) else _PHI3_TOKENS
    assert isinstance(held, (list, tuple))
    if set(_PHI3_TOKENS) <= set(held):
        return dict(values), ()
    other = _PHI3.sub("Phi 3", name)
    note = f"general.name is {other!r}, because llama.cpp requires Phi-3 tokens for the name {name!r}"
    return {**values, "general.name": Value.of(ValueType.STR, other)}, (note,)
