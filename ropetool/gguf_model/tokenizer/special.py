"""The special tokens of a tokenizer, the tokens that it adds around each text, and its chat templates.

Reads the post-processor of tokenizer.json and the files next to it.
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
from ropetool.files.json_types import LIST, OBJECT, STRING, TEXT, check_members, checked, list_of, taken, whole
from ropetool.files.regular import read_regular

SPECIAL_TOKENS_MAP_JSON = "special_tokens_map.json"
CHAT_TEMPLATE_JINJA = "chat_template.jinja"
CHAT_TEMPLATE_JSON = "chat_template.json"
MORE_TEMPLATES = "additional_chat_templates"
GENERATION_CONFIG = "generation_config.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "mask")  # the special tokens that tokenizers and GGUF files both name
# The defaults of transformers' classes for a tokenizer.model, if no file names these tokens.
UNSTATED = {"bos": ("<s>", "<bos>"), "eos": ("</s>", "<eos>")}
MORE_ENDS = ("eot", "eom")  # llama.cpp's two other keys for tokens that end a text
# Tokens that always end a text in llama.cpp. Source: src/llama-vocab.cpp, special_eog_ids.
KNOWN_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
})  # fmt: skip
TOKEN_ID = whole(0, 2**31 - 1)
TOKEN_IDS = list_of(TOKEN_ID, 16)
_STEPS = list_of(OBJECT, 1000)
MAX_TEMPLATE = 1 << 20  # bytes; the longest known has a twentieth of this


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    ids: token ids by role (bos, eos and so on).
    add_bos, add_eos: whether each text gets the bos token in front, or the eos token at the end.
    """

    ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    notes: tuple[str, ...] = ()


def special_tokens(
    path: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any] | None, ids: Mapping[str, int], where: str
) -> SpecialTokens:
    """Return the special tokens. tokenizer_config.json names them, else special_tokens_map.json, else config.json.

    The post-processor of tokenizer.json determines the tokens around a text. transformers reads nothing else for these
    tokenizers. Without tokenizer.json, tokenizer_config.json determines them.

    ids: the ids of all tokens by text.
    Raises: LossyExport for a post-processor that llama.cpp cannot follow; CorruptFile.
    """
    tokenizer_config = _optional(path / names.TOKENIZER_CONFIG_JSON)
    mapped = _optional(path / SPECIAL_TOKENS_MAP_JSON)
    special_ids: dict[str, int] = {}
    notes: list[str] = []
    for role in ROLES:
        token = _content(tokenizer_config.get(f"{role}_token")) or _content(mapped.get(f"{role}_token"))
        number = ids.get(token) if token is not None else _first(config.get(f"{role}_token_id"))
        if tokenizer is None and token is None and number is None:
            number = next((ids[name] for name in UNSTATED.get(role, ()) if name in ids), None)
        if token is not None and number is None:
            notes.append(f"{role}_token {token!r} is left out: the vocabulary does not have it")
        if number is not None and number in ids.values():
            special_ids[role] = number
    if tokenizer is None:
        around = _around_as_stated(special_ids, tokenizer_config)
    else:
        around, around_notes = _around(tokenizer.get("post_processor"), where)
        notes += around_notes
        for role, added in zip(("bos", "eos"), around, strict=True):
            if added is not None and added not in ids.values():
                raise LossyExport(
                    f"its post-processor adds token {added}, which the vocabulary does not have", where=where
                )
            notes += _settle(special_ids, role, added, tokenizer_config, where)
    ends, end_notes = _ends(path, config)
    notes += end_notes + _more_ends(special_ids, ends, ids)
    return SpecialTokens(special_ids, around[0] is not None, around[1] is not None, tuple(notes))


def _around_as_stated(
    special_ids: Mapping[str, int], tokenizer_config: Mapping[str, Any]
) -> tuple[int | None, int | None]:
    """Return the tokens that transformers' classes for a tokenizer.model put around a text: by default only bos."""
    bos = special_ids.get("bos") if tokenizer_config.get("add_bos_token", True) is True else None
    eos = special_ids.get("eos") if tokenizer_config.get("add_eos_token", False) is True else None
    return bos, eos


def _ends(path: Path, config: Mapping[str, Any]) -> tuple[list[int], list[str]]:
    """Return the ids of the tokens that end a text during generation, and notes.

    They come from generation_config.json, else from config.json. If the first file cannot be read, transformers uses
    the second one too.
    """
    notes = []
    try:
        eos = _optional(path / GENERATION_CONFIG).get("eos_token_id")
    except CheckpointError as error:
        eos = None
        notes = [f"end-of-text tokens come from {names.CONFIG_JSON} only: {GENERATION_CONFIG} {error.message}"]
    listed = config.get("eos_token_id") if eos is None else eos
    several = listed if isinstance(listed, list) else [listed]
    return [number for number in several if isinstance(number, int) and not isinstance(number, bool)], notes


def _more_ends(special_ids: dict[str, int], ends: Sequence[int], ids: Mapping[str, int]) -> list[str]:
    """Add further tokens that end a text to the special ids, if llama.cpp does not know their text; return notes."""
    texts = {number: text for text, number in ids.items()}
    if ends and "eos" not in special_ids and ends[0] in texts:
        special_ids["eos"] = ends[0]
    more = [n for n in dict.fromkeys(ends) if n in texts and n != special_ids.get("eos") and texts[n] not in KNOWN_ENDS]
    special_ids.update(zip(MORE_ENDS, more, strict=False))
    return [
        f"token {texts[n]!r} also ends a text, but a GGUF file has no more keys for such tokens"
        for n in more[len(MORE_ENDS) :]
    ]


def _settle(
    special_ids: dict[str, int], role: str, added: int | None, tokenizer_config: Mapping[str, Any], where: str
) -> list[str]:
    """Set the token added around a text as its role's special token, because llama.cpp adds no other; return notes.

    Raises: LossyExport if the role already has a different token.
    """
    if added is not None and special_ids.setdefault(role, added) != added:
        raise LossyExport(
            f"its post-processor adds token {added}, but llama.cpp adds only its {role} token, {special_ids[role]}",
            where=where,
        )
    asked = tokenizer_config.get(f"add_{role}_token")
    if isinstance(asked, bool) and asked != (added is not None):
        does = "adds one" if added is not None else "does not add one"
        return [
            f"add_{role}_token is {str(asked).lower()}, but the post-processor {does}; the file follows the post-processor"
        ]
    return []


def _optional(path: Path) -> Mapping[str, Any]:
    document = read_optional_object(path)
    return document[1] if document is not None else {}


def _content(token: Any) -> str | None:
    """Return the text of a token, which is a string or an object with a content; None if there is no text."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) and content else None


def _first(ids: Any) -> int | None:
    """Return a token id, or the first of a list of ids; None if there is no id."""
    one = ids[0] if isinstance(ids, list) and ids else ids
    return one if isinstance(one, int) and not isinstance(one, bool) else None


# --- the post-processor


def _around(post_processor: Any, where: str) -> tuple[tuple[int | None, int | None], list[str]]:
    """Return the token before a single text and the token after it, and notes. None means that no token is added."""
    before: list[int] = []
    behind: list[int] = []
    for step in _steps(post_processor, where):
        if step.get("type") == "TemplateProcessing":
            first, last = _template(step, where)
            before, behind = [*first, *before], [*behind, *last]
        elif step.get("type") != "ByteLevel":  # ByteLevel only corrects offsets
            raise LossyExport(
                f"unknown post-processor {shown(step.get('type'))}; known: ByteLevel and TemplateProcessing",
                where=where,
            )
    if len(before) > 1 or len(behind) > 1:  # glm4: [gMASK]<sop>, which its chat template contains
        return (None, None), [
            f"its post-processor adds tokens {before} before a text and {behind} after it; llama.cpp adds at most one on each "
            "side. The file adds none: write them in the prompt, as chat templates do"
        ]
    return (before[0] if before else None, behind[0] if behind else None), []


def _steps(part: Any, where: str) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    checked(part, OBJECT, "post_processor", where)
    yield from (
        taken(part, "processors", _STEPS, f"{where}: post_processor") if part.get("type") == "Sequence" else [part]
    )


def _template(step: Mapping[str, Any], where: str) -> tuple[list[int], list[int]]:
    """Return the ids before and after the text in the template for a single text."""
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
    """Return the chat templates by name, the default one first.

    chat_template.jinja takes precedence, as in transformers. chat_template.json belongs to a processor. Tokenizers
    ignore it, so it counts only if no other template exists.
    Raises: CorruptFile for a template that is not text.
    """
    templates: Any = _template_file(path)
    if templates is None:
        templates = _optional(path / names.TOKENIZER_CONFIG_JSON).get("chat_template")
    if templates is None:
        templates = _optional(path / CHAT_TEMPLATE_JSON).get("chat_template")
    if templates is None:
        return []
    listed = templates if isinstance(templates, list) else [{"name": "default", "template": templates}]
    for one in listed:
        check_members(one, {"name": STRING, "template": STRING}, place="a chat template", where=str(path))
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
