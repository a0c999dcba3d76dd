"""The special tokens of a tokenizer, the tokens that it adds around each text, and its chat templates.

Knows the files next to tokenizer.json and its post-processor; the vocabulary is in vocabulary.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.errors import CheckpointError, CorruptFile, LossyExport
from ropetool.files.hf import read_optional_object
from ropetool.files.hf.jsontext import shown
from ropetool.files.hf.typed import LIST, OBJECT, TEXT, checked, list_of, taken, whole
from ropetool.files.regular import read_regular

SPECIAL_TOKENS_MAP_JSON = "special_tokens_map.json"
CHAT_TEMPLATE_JINJA = "chat_template.jinja"
CHAT_TEMPLATE_JSON = "chat_template.json"
MORE_TEMPLATES = "additional_chat_templates"
GENERATION_CONFIG = "generation_config.json"
KINDS = ("bos", "eos", "unk", "sep", "pad", "mask")  # those that both tokenizers and GGUF files name
# Without a tokenizer.json and where no file names them: what transformers' classes for a tokenizer.model go by.
UNSTATED = {"bos": ("<s>", "<bos>"), "eos": ("</s>", "<eos>")}
MORE_ENDS = ("eot", "eom")  # llama.cpp's two other keys for tokens that end a text
# Tokens that end a text in llama.cpp whatever the file says. Source: src/llama-vocab.cpp, special_eog_ids.
KNOWN_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
})  # fmt: skip
TOKEN_IDS = list_of(whole(0, 2**31 - 1), 16)
MAX_TEMPLATE = 1 << 20  # bytes; the longest known has a twentieth


@dataclass(frozen=True)
class Special:
    """Ids by kind (bos, eos ...), and whether each text gets the first in front and the second behind."""

    ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    notes: tuple[str, ...] = ()


def special_tokens(
    path: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, ids: Mapping[str, int], where: str
) -> Special:
    """Return the special tokens: as tokenizer_config.json names them, else special_tokens_map.json, else config.json.

    `ids` are those of all tokens. Around the text goes what the post-processor puts there, as in transformers, which
    looks at nothing else for these tokenizers; without a tokenizer.json it is what tokenizer_config.json says.
    Raises: LossyExport for a post-processor that llama.cpp cannot follow; CorruptFile.
    """
    stated = _optional(path / names.TOKENIZER_CONFIG_JSON)
    mapped = _optional(path / SPECIAL_TOKENS_MAP_JSON)
    found: dict[str, int] = {}
    notes: list[str] = []
    for kind in KINDS:
        token = _content(stated.get(f"{kind}_token")) or _content(mapped.get(f"{kind}_token"))
        number = ids.get(token) if token is not None else _first(config.get(f"{kind}_token_id"))
        if tokenizer is None and token is None and number is None:
            number = next((ids[name] for name in UNSTATED.get(kind, ()) if name in ids), None)
        if token is not None and number is None:
            notes.append(f"{kind}_token {token!r} is left out: the vocabulary does not have it")
        if number is not None and number in ids.values():
            found[kind] = number
    if tokenizer is None:
        around = _around_as_stated(found, stated)
    else:
        around, said = _around(tokenizer.get("post_processor"), where)
        notes += said
        for kind, added in zip(("bos", "eos"), around, strict=True):
            if added is not None and added not in ids.values():
                raise LossyExport(
                    f"its post-processor adds token {added}, which the vocabulary does not have", where=where
                )
            notes += _settle(found, kind, added, stated, where)
    ends, said = _ends(path, config)
    notes += said + _more_ends(found, ends, ids)
    return Special(found, around[0] is not None, around[1] is not None, tuple(notes))


def _around_as_stated(found: Mapping[str, int], stated: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return what transformers' classes for a tokenizer.model put around a text: by default the first token alone."""
    bos = found.get("bos") if stated.get("add_bos_token", True) is True else None
    eos = found.get("eos") if stated.get("add_eos_token", False) is True else None
    return bos, eos


def _ends(path: Path, config: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    """Return the tokens that end a text as generation goes by them, and notes.

    They are those of generation_config.json, else of config.json: as in transformers, where the first cannot be read.
    """
    notes = []
    try:
        stated = _optional(path / GENERATION_CONFIG).get("eos_token_id")
    except CheckpointError as error:
        stated = None
        notes = [f"end-of-text tokens come from {names.CONFIG_JSON} only: {GENERATION_CONFIG} {error.message}"]
    listed = config.get("eos_token_id") if stated is None else stated
    several = listed if isinstance(listed, list) else [listed]
    return [number for number in several if isinstance(number, int) and not isinstance(number, bool)], notes


def _more_ends(found: dict[str, int], ends: Sequence[int], ids: Mapping[str, int]) -> list[str]:
    """Name the tokens that end a text besides the eos token, as far as llama.cpp does not know them by their text."""
    texts = {number: text for text, number in ids.items()}
    if ends and "eos" not in found and ends[0] in texts:
        found["eos"] = ends[0]
    more = [n for n in dict.fromkeys(ends) if n in texts and n != found.get("eos") and texts[n] not in KNOWN_ENDS]
    found.update(zip(MORE_ENDS, more, strict=False))
    return [
        f"token {texts[n]!r} also ends a text, but a GGUF file has no more keys for such tokens"
        for n in more[len(MORE_ENDS) :]
    ]


def _settle(found: dict[str, int], kind: str, added: int | None, stated: Mapping[str, Any], where: str) -> list[str]:
    """Make the token that is put around the text the special token of its kind, which is all that llama.cpp puts."""
    if added is not None and found.setdefault(kind, added) != added:
        raise LossyExport(
            f"its post-processor adds token {added}, but llama.cpp adds only its {kind} token, {found[kind]}",
            where=where,
        )
    asked = stated.get(f"add_{kind}_token")
    if isinstance(asked, bool) and asked != (added is not None):
        does = "adds one" if added is not None else "does not add one"
        return [
            f"add_{kind}_token is {str(asked).lower()}, but the post-processor {does}; the file follows the post-processor"
        ]
    return []


def _optional(path: Path) -> Mapping[str, Any]:
    found = read_optional_object(path)
    return found[1] if found is not None else {}


def _content(token: Any) -> str | None:
    """Return the text of a token: a string, or an object that holds it; None where there is none."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) and content else None


def _first(stated: Any) -> int | None:
    """Return a token id, the first where there are several."""
    one = stated[0] if isinstance(stated, list) and stated else stated
    return one if isinstance(one, int) and not isinstance(one, bool) else None


# --- the post-processor


def _around(post_processor: Any, where: str) -> tuple[tuple[int | None, int | None], list[str]]:
    """Return the token that is put before a single text and the one behind it, and notes."""
    before: list[int] = []
    behind: list[int] = []
    for step in _steps(post_processor, where):
        if step.get("type") == "TemplateProcessing":
            first, last = _template(step, where)
            before, behind = [*first, *before], [*behind, *last]
        elif step.get("type") != "ByteLevel":  # that one only mends offsets
            raise LossyExport(
                f"unknown post-processor {shown(step.get('type'))}; known: ByteLevel and TemplateProcessing",
                where=where,
            )
    if len(before) > 1 or len(behind) > 1:  # glm4: [gMASK]<sop>, which its chat template writes out
        return (None, None), [
            f"its post-processor adds tokens {before} before a text and {behind} after it; llama.cpp adds at most one on each "
            "side. The file adds none: write them in the prompt, as chat templates do"
        ]
    return (before[0] if before else None, behind[0] if behind else None), []


def _steps(part: Any, where: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    inner = part.get("processors") if isinstance(part, Mapping) and part.get("type") == "Sequence" else [part]
    if not isinstance(inner, list) or not all(isinstance(step, Mapping) for step in inner):
        raise CorruptFile(f"post_processor must be an object: {shown(part)}", where=where)
    yield from inner


def _template(step: Mapping[str, Any], where: str) -> tuple[list[int], list[int]]:
    """Return the ids before and behind the sequence in a template for one text."""
    parts: tuple[list[int], list[int]] = ([], [])
    place = f"{where}: post_processor"
    known = taken(step, "special_tokens", OBJECT, place, {})
    seen = 0
    for piece in taken(step, "single", LIST, place):
        if "Sequence" in checked(piece, OBJECT, "a part of the template", place):
            seen += 1
            continue
        name = taken(taken(piece, "SpecialToken", OBJECT, place), "id", TEXT, place)
        ids = taken(taken(known, name, OBJECT, place), "ids", TOKEN_IDS, place)
        parts[min(seen, 1)].extend(ids)
    if seen != 1:
        raise LossyExport(f"its template inserts a text {seen} times; llama.cpp inserts it once", where=where)
    return parts


# --- chat templates


def chat_templates(path: Path) -> list[dict[str, str]]:
    """Return the chat templates by name, the default one first; chat_template.jinja wins, as in transformers.

    chat_template.json is a processor's, which tokenizers do not look at: it counts where nothing else is there.
    Raises: CorruptFile for a template that is not text.
    """
    found: Any = _template_file(path)
    if found is None:
        found = _optional(path / names.TOKENIZER_CONFIG_JSON).get("chat_template")
    if found is None:
        found = _optional(path / CHAT_TEMPLATE_JSON).get("chat_template")
    if found is None:
        return []
    listed = found if isinstance(found, list) else [{"name": "default", "template": found}]
    for one in listed:
        if not isinstance(one, Mapping) or not all(isinstance(one.get(key), str) for key in ("name", "template")):
            raise CorruptFile(f"a chat template must have a name and a template: {shown(one)}", where=str(path))
    chosen = [{"name": one["name"], "template": one["template"]} for one in listed]
    return sorted(chosen, key=lambda one: one["name"] != "default")


def _template_file(path: Path) -> list[dict[str, str]] | None:
    if not (path / CHAT_TEMPLATE_JINJA).is_file():
        return None
    more = sorted((path / MORE_TEMPLATES).glob("*.jinja"))
    texts = [("default", path / CHAT_TEMPLATE_JINJA), *((file.stem, file) for file in more)]
    return [{"name": name, "template": _text(file)} for name, file in texts]


def _text(path: Path) -> str:
    try:
        return io.TextIOWrapper(io.BytesIO(read_regular(path, MAX_TEMPLATE)), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"is not UTF-8: {error.reason}", where=str(path)) from None
