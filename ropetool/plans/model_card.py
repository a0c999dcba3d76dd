"""The texts next to an output: ropetool's section of the model card, between markers, and an Ollama Modelfile.

The user's own text and front matter stay unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropetool import __version__, names
from ropetool.escaping import command, escaped, words
from ropetool.files import hub
from ropetool.files.regular import open_regular
from ropetool.files.transaction import staged
from ropetool.plans.basis import CURRENT, ORIGINAL
from ropetool.plans.plan import BAKE, Plan
from ropetool.rope import methods

CARD, MODELFILE = names.CARD, "Modelfile"
START, VERIFICATION, SERVING, END = (
    "<!-- ropetool -->", "<!-- ropetool: verification -->", "<!-- ropetool: serving -->", "<!-- /ropetool -->"
)  # fmt: skip
TAG, LONG_TAG = "ropetool", "long-context"
MAX_CARD = 4 << 20  # bytes; the largest known cards have a tenth of this
MODELFILE_HEAD = "# Written by ropetool"
_UNVERIFIED = "Not verified yet. `ropetool verify` measures the model and writes the results here."
_FRONT = re.compile(r"\A([\s\ufeff]*---[ \t]*\r?\n)(.*?)(^---[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*/[A-Za-z0-9._-]+")  # because of the slash, YAML reads it as text
_KEY = r"^[\"']?tags[\"']?[ \t]*:[ \t]*"
_BLOCK_TAGS = re.compile(_KEY + r"(?:#.*)?\r?\n((?:([ \t]*)-[ \t]+.*\r?\n)+)", re.MULTILINE)
_FLOW_TAGS = re.compile(_KEY + r"\[([^\]\n]*)\]", re.MULTILINE)
# An option with a value, or only one of them.
_WORD = re.compile(r"(--[A-Za-z][A-Za-z0-9-]*=|-[A-Za-z](?=/))?(.*)", re.DOTALL)
# A key without a value. Two adjacent repetitions of the same characters would take quadratic time.
_EMPTY = r"^[\"']?{}[\"']?[ \t]*:[ \t]*(?:(?:null|~)[ \t]*)?\r?\n(?![ \t#-])"


# --- files


def card_place(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's card: README.md inside a directory, NAME.gguf.README.md next to a file."""
    return checkpoint / CARD if checkpoint.is_dir() else beside(checkpoint, CARD)


def beside(file: Path, name: str) -> Path:
    """Return the path of a sidecar file of a GGUF file.

    It starts with its name, because the folder may contain other models.
    """
    return file.with_name(f"{file.name}.{name}")


def read_card(place: Path) -> str | None:
    """Return the text of a card, or an empty string without a card. None for a card that is too long to edit.

    Raises: CheckpointError if it is not a regular file or cannot be read.
    """
    if not place.exists():
        return ""
    with open_regular(place) as file:
        raw = file.read(MAX_CARD + 1)
    return None if len(raw) > MAX_CARD else raw.decode("utf-8", "surrogateescape")


def write_card(place: Path, card: str) -> None:
    """Write a card. Bytes that were not UTF-8 stay unchanged. Other halves of surrogate pairs become U+FFFD."""
    place.write_bytes(re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", card).encode("utf-8", "surrogateescape"))


def texts_beside(
    files: Sequence[Path], card: str, context: int, results: Mapping[str, Any] | None = None
) -> dict[Path, str]:
    """Return the texts of the card and the Modelfile of a GGUF model, by path. The Modelfile may be missing.

    results: the entry of `model_index`, or None.
    The user's text in an existing card stays. A Modelfile that the user has edited is not replaced.
    """
    place = beside(files[0], CARD)
    existing = read_card(place) if place.is_file() else ""
    texts = {} if existing is None else {place: with_results(grafted(existing, card), results)}
    ollama = modelfile_place(files)
    if ollama is not None and _may_replace_modelfile(ollama):
        texts[ollama] = modelfile(files[0].name, context)
    return texts


def modelfile_place(files: Sequence[Path]) -> Path | None:
    """Return the path of the Modelfile of a GGUF model, or None if Ollama cannot load the model.

    Ollama does not load a model in several files, and a Modelfile cannot name a file with control characters.
    """
    return beside(files[0], MODELFILE) if len(files) == 1 and escaped(files[0].name) == files[0].name else None


def refresh(checkpoint: Path, certificate: Mapping[str, Any]) -> None:
    """Write the figures of a certificate into the card of an output, if it has ropetool's section."""
    place = card_place(checkpoint)
    card = read_card(place)
    if not card or VERIFICATION not in _split(card)[1] or place.is_symlink():
        return
    from ropetool.plans import model_index  # most cards are written without results

    results = model_index.entry(certificate, hub.name_of(checkpoint))
    updated = with_results(with_verification(card, certificate), results)
    if updated != card:
        inside = checkpoint / names.CONFIG_JSON if checkpoint.is_dir() else checkpoint
        with staged(place, inside, force=True) as stage:
            write_card(stage, updated)


# --- the section


def portable(line: str) -> str:
    """Return a command line with names and Hub ids in place of the absolute paths on this machine."""
    try:
        return command(*map(_portable_word, words(line)))
    except ValueError:  # not a valid command line
        return escaped(line)


def _portable_word(word: str) -> str:
    option, value = _WORD.fullmatch(word).groups("")  # type: ignore[union-attr]  # it matches any text
    if not os.path.isabs(value):
        return word
    return f"{option}{hub.origin(Path(value)) or Path(value).name or value}"


def planned_step(plan: Plan) -> str:
    """Return a paragraph that describes the effect of a plan on a model."""
    baked = (
        f" Baked into the weights: {'; '.join(map(escaped, plan.bakes))}." if plan.bakes else " No weight was changed."
    )
    if plan.method == BAKE:
        return f"{baked.lstrip()} The context length stays at {plan.max_position_embeddings} tokens."
    if methods.get(plan.method).keeps_tables:
        before = round(plan.max_position_embeddings / plan.factor)
        if before == plan.max_position_embeddings:
            return (
                f"The RoPE keys were rewritten. The context length stays at {before} tokens, and the RoPE tables did not change."
                f"{baked}"
            )
        return (
            f"The context length was raised from {before} to {plan.max_position_embeddings} tokens: `{plan.method}`. "
            f"The RoPE tables did not change.{baked}"
        )
    earlier = {ORIGINAL: ", in place of an earlier scaling", CURRENT: ", on top of an earlier scaling"}
    params = "".join(f", {name} {_short(value)}" for name, value in plan.params.items())
    return (
        f"The context was extended from {plan.trained_length} to {plan.max_position_embeddings} tokens: "
        f"`{plan.method}`, factor {plan.factor:g}{params}{earlier.get(plan.reading, '')}.{baked}"
    )


def exported_step(
    outtype: str, encoding: str, bakes: Sequence[str] = (), checks: Sequence[str] = (), inexact: str = ""
) -> str:
    """Return a paragraph that describes an export, with a comparison of file and checkpoint.

    inexact: the difference from the checkpoint's positions, if llama.cpp cannot store them. Else empty.
    """
    baked = f" Baked into the weights: {'; '.join(bakes)}." if bakes else ""
    compared = f" Compared with the checkpoint: {'; '.join(checks)}." if checks else ""
    warning = f" **llama.cpp cannot represent the positions of the checkpoint exactly: {inexact}.**" if inexact else ""
    return f"Exported to GGUF: matrices in {outtype}, positions stored as {encoding}.{warning}{baked}{compared}"


def with_step(card: str, step: str, command: str, serving: Sequence[str], *, base_model: str = "", long: bool) -> str:
    """Return the card with one more step of the model's history. Drops the results of earlier measurements.

    command: the command line of the step. Empty for a call from Python.
    serving: command lines.
    base_model: a Hub id for the front matter, unless the front matter names one already.
    long: whether to add the tag for a long context.
    """
    before, inside, after = _split(card)
    done = _between(inside, "", VERIFICATION).strip()
    number = len(re.findall(r"^[0-9]+\. ", done, re.MULTILINE)) + 1
    shown = f"\n\n{_fenced(portable(command), '   ')}" if command else ""
    steps = f"{done}\n\n" if done else f"## What ropetool {__version__} did\n\n"
    lines = f"\n\n### Serving\n\n{_fenced(chr(10).join(serving))}" if serving else ""
    section = f"{steps}{number}. {step}{shown}\n\n{VERIFICATION}\n\n{_verification(None)}\n\n{SERVING}{lines}"
    tags = (TAG, LONG_TAG) if long else (TAG,)
    return with_front_matter(with_results(_joined(before, section, after), None), base_model, tags)


def with_verification(card: str, certificate: Mapping[str, Any] | None, *, of_source: bool = False) -> str:
    """Return the card with the figures of a certificate. A card without ropetool's section stays unchanged.

    of_source: the certificate is for the checkpoint that this file was exported from.
    """
    before, inside, after = _split(card)
    if VERIFICATION not in inside:
        return card
    steps, rest = inside.partition(VERIFICATION)[0], inside.partition(SERVING)[2]
    section = (
        f"{steps.strip()}\n\n{VERIFICATION}\n\n{_verification(certificate, of_source)}\n\n{SERVING}{rest.rstrip()}"
    )
    return _joined(before, section, after)


def grafted(card: str, new_card: str) -> str:
    """Return a card with ropetool's section from `new_card`.

    The user's text stays. An empty card is replaced as a whole.
    """
    if not card.strip():
        return new_card
    before, _, after = _split(card)
    return _joined(before, _split(new_card)[1].strip(), after)


def _split(card: str) -> tuple[str, str, str]:
    """Return the text before ropetool's section, the section without its markers, and the text after it."""
    before, start, rest = card.partition(START)
    inside, end, after = rest.rpartition(END)
    return (before, inside, after) if start and end else (card, "", "")


def _joined(before: str, section: str, after: str) -> str:
    head = f"{before.rstrip()}\n\n" if before.strip() else ""
    tail = f"\n\n{after.strip()}\n" if after.strip() else "\n"
    return f"{head}{START}\n\n{section}\n\n{END}{tail}"


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0] if start else text.partition(end)[0]


def _verification(certificate: Mapping[str, Any] | None, of_source: bool = False) -> str:
    if certificate is None:
        return f"### Verification\n\n{_UNVERIFIED}"
    from ropetool.checkpoint import certificate as certificates  # a card gets figures only from `verify`

    verdicts = {
        "pass": "passed",
        "fail": "**failed**",
        "partial": "ran only in part",
        "undecided": "undecided",
    }
    subject = "Results of the checkpoint before the export. " if of_source else ""
    verdict = verdicts.get(certificate["verdict"], certificate["verdict"])
    grade = f" at grade {certificate['grade']}" if "grade" in certificate else ""
    head = (
        f"### Verification\n\n{subject}{_asked(certificate['suite'], certificates.DEFAULT)}, up to "
        f"{certificate['longest']} tokens: {verdict}{grade} ({str(certificate['made'])[:10]}). {_texts(certificate)}"
    ).rstrip()
    rows = [
        f"| {_cell(c['name'])} | {_figure(c['figure'])} | {_figure(c['limit'])} | {_cell(c['verdict'])} | {_cell(c['detail'])} |"
        for c in certificate["checks"]
    ]
    table = "\n".join(["| check | figure | limit | verdict | detail |", "| --- | --: | --: | --- | --- |", *rows])
    command = portable(certificate["command"])
    reach = certificates.reach(certificate)
    sentences = [f"{reach[0].upper()}{reach[1:]}."] if reach else []
    return "\n\n".join([head, table, *sentences, *([_fenced(command)] if command else [])])


def _asked(suite: str, default: str) -> str:
    return "`ropetool verify`" if suite == default else f"The {suite} suite of `ropetool verify`"


def _texts(certificate: Mapping[str, Any]) -> str:
    """Return the sentence that names the catalogue's documents, so that readers can measure on the same texts."""
    texts = certificate.get("texts") or {}
    if texts.get("manifest") is None:
        return ""
    part = f"{len(texts['names'])} documents of " if texts["names"] else ""
    others = " and others" if texts["origin"] == "mixed" else ""
    return f"Measured on {part}ropetool's text catalogue `{texts['manifest'][:16]}`{others}."


def _fenced(text: str, indent: str = "") -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return "\n".join(f"{indent}{line}" for line in (f"{fence}sh", *text.splitlines(), fence))


_MARKUP = re.compile(r"[\\`|*\[\]]")


def _cell(text: Any) -> str:
    """Return text for a cell of a table, with all markup of Markdown and HTML escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(escaped(" ".join(str(text).split())).split())).replace("<", "&lt;")


def _figure(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"of {len(value)} numbers"
    return f"{value:g}" if isinstance(value, float) else escaped(value)


# --- front matter


def with_front_matter(card: str, base_model: str, tags: Sequence[str]) -> str:
    """Return the card with tags, and with a base model if it does not name one. All other lines stay unchanged."""
    match = _FRONT.match(card)
    if match is None:
        lines = [*([f"base_model: {_yaml(base_model)}"] if base_model else []), "tags:", *(f"- {tag}" for tag in tags)]
        return "---\n" + "".join(f"{line}\n" for line in lines) + f"---\n\n{card}"
    newline = "\r\n" if match[1].endswith("\r\n") else "\n"
    inner = _with_tags(_without_empty(match[2], "tags"), tags, newline)
    if base_model:
        inner = _without_empty(inner, "base_model")
    if base_model and not re.search(r"^base_model[ \t]*:", inner, re.MULTILINE):
        inner += f"base_model: {_yaml(base_model)}{newline}"
    return f"{match[1]}{inner}{match[3]}{card[match.end() :]}"


def with_results(card: str, results: Mapping[str, Any] | None) -> str:
    """Return the card with this entry of `model_index` in its front matter, or without an entry for None."""
    match = _FRONT.match(card)
    if results is None and (match is None or names.MODEL_INDEX not in match[2]):
        return card
    from ropetool.plans import model_index  # most cards have no results

    if match is None:
        return card if results is None else f"---\n{model_index.with_entry('', results)}---\n\n{card}"
    newline = "\r\n" if match[1].endswith("\r\n") else "\n"
    return f"{match[1]}{model_index.with_entry(match[2], results, newline)}{match[3]}{card[match.end() :]}"


def _yaml(text: str) -> str:
    """Return a text as a YAML scalar, quoted unless it is a plain Hub id."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def _without_empty(front: str, key: str) -> str:
    return re.sub(_EMPTY.format(key), "", front, flags=re.MULTILINE)


def _with_tags(front: str, tags: Sequence[str], newline: str) -> str:
    """Return the lines with these tags in their list, in either YAML style.

    A value that is not a list stays unchanged.
    """
    block, flow = _BLOCK_TAGS.search(front), _FLOW_TAGS.search(front)
    if block is not None:
        present = {line.partition(" #")[0].strip().lstrip("- ").strip("\"'") for line in block[1].splitlines()}
        more = "".join(f"{block[2]}- {tag}{newline}" for tag in tags if tag not in present)
        return front[: block.end()] + more + front[block.end() :]
    if flow is not None:
        present = {part.strip().strip("\"'") for part in flow[1].split(",")}
        listed = flow[1].rstrip(" ,")
        all_tags = [*([listed] if listed.strip() else []), *(tag for tag in tags if tag not in present)]
        return f"{front[: flow.start(1)]}{', '.join(all_tags)}{front[flow.end(1) :]}"
    if re.search(_KEY, front, re.MULTILINE):
        return front
    return front + f"tags:{newline}" + "".join(f"- {tag}{newline}" for tag in tags)


# --- Ollama


def modelfile(file: str, context: int) -> str:
    """Return a Modelfile for a GGUF file in the same folder. The chat template is in the file itself.

    Without num_ctx, Ollama uses a few thousand tokens, regardless of the file's context length.
    """
    head = f"{MODELFILE_HEAD}: ollama create NAME -f THIS-FILE (Ollama 0.30 and later, which run llama.cpp)"
    return f"{head}\nFROM ./{file}\nPARAMETER num_ctx {context}\n"


def _may_replace_modelfile(place: Path) -> bool:
    """Return whether there is no file, or a Modelfile that ropetool wrote and the user has not taken over."""
    if not place.is_file():
        return True
    with open_regular(place) as file:
        return file.read(len(MODELFILE_HEAD)) == MODELFILE_HEAD.encode()
