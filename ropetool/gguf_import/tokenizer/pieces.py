"""SentencePiece vocabularies of a GGUF file as tokenizer.json: the models llama (BPE by scores) and t5 (Unigram).

llama.cpp joins any two pieces that form a piece, in the order of their scores. tokenizer.json lists the pairs.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from ropetool.errors import CorruptFile, LossyExport
from ropetool.files.gguf import Value, ValueType
from ropetool.files.hf.jsontext import shown
from ropetool.gguf_import.tokenizer.core import Component, Core, bpe, sequence
from ropetool.gguf_import.tokenizer.vocabulary import AGAIN, MODEL, PREFIX, SCORES, Vocabulary, read_bool, read_numbers
from ropetool.gguf_model.tokenizer.merges import MAX_STEPS
from ropetool.gguf_model.tokenizer.model_file import MAX_CHARSMAP
from ropetool.gguf_model.tokenizer.pieces import CHARSMAP_NOTE
from ropetool.gguf_model.tokenizer.vocabulary import BYTE, NORMAL, SPACE

ADD_SPACE, ONE_SPACE, CHARSMAP = (
    f"{PREFIX}{name}" for name in ("add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap")
)
SPELLED: Component = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
Pair = tuple[str, str]


# --- llama


def joined_by_score(values: Mapping[str, Value], vocabulary: Vocabulary, unknown: int | None, where: str) -> Core:
    """Return the components of a BPE that joins by score, with byte fallback.

    Raises: LossyExport for bytes without a token, and for tokens that are too long; CorruptFile.
    """
    missing = next((name for name in map("<0x{:02X}>".format, range(256)) if name not in vocabulary.ids), None)
    if missing is not None:
        raise LossyExport(
            f"has no token {missing}; a tokenizer with the {MODEL} llama needs one for each byte, or llama.cpp aborts on text "
            "with such a byte", where=where, try_=AGAIN,
        )  # fmt: skip
    merges, notes = _merges(vocabulary, _scores(values, vocabulary, where), where)
    prefixed = read_bool(values, ADD_SPACE, True, where)
    normalizers = [{"type": "Prepend", "prepend": SPACE}, SPELLED] if prefixed else [SPELLED]
    decoders: list[Component] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []),
    ]  # fmt: skip
    texts = {number: text for text, number in vocabulary.ids.items()}
    model = bpe(
        vocabulary.ids, merges, unk_token=texts.get(unknown) if unknown is not None else None,
        fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    where_spaces = "adds a space before each text and after each added token" if prefixed else "does not add spaces"
    notes.append(f"the tokenizer {where_spaces}, as llama.cpp does ({ADD_SPACE})")
    return Core(
        model, {"type": "Sequence", "decoders": decoders}, sequence("normalizers", normalizers), notes=tuple(notes)
    )


def _scores(values: Mapping[str, Value], vocabulary: Vocabulary, where: str) -> Sequence[float]:
    numbers = read_numbers(values, SCORES, {ValueType.F32, ValueType.I32}, vocabulary.rows, where)
    if numbers is None:
        raise CorruptFile(f"does not set {SCORES}, which SentencePiece tokenizers require", where=where, try_=AGAIN)
    scores: list[float] = numbers.astype(float).tolist()
    odd = next((number for number, score in enumerate(scores) if not math.isfinite(score)), None)
    if odd is not None:
        raise CorruptFile(f"{SCORES}[{odd}] is {scores[odd]}; scores must be finite numbers", where=where, try_=AGAIN)
    return scores


def _merges(vocabulary: Vocabulary, scores: Sequence[float], where: str) -> tuple[list[Pair], list[str]]:
    """Return all pairs that llama.cpp joins, in its order of preference, and notes.

    Among pairs of equal score, llama.cpp joins the leftmost. So a run (====) grows from its left end, and pairs with a
    longer left part come first. Pairs that form the same piece have the same score.
    """
    joinable = dict(vocabulary.joinable())
    if sum(len(text) ** 2 for text in joinable) > MAX_STEPS:
        raise LossyExport(
            f"its tokens are too long to list the merges that form them: the squares of their lengths add up to more than "
            f"{MAX_STEPS:,}", where=where,
        )  # fmt: skip
    known = {text: text for text in joinable}

    def score_of(text: str) -> float:
        return scores[joinable[text]]

    merges: list[Pair] = []
    notes: list[str] = []
    for score, texts in itertools.groupby(sorted(joinable, key=score_of, reverse=True), score_of):
        tied = [pair for text in texts for pair in _halves(text, known)]
        tied.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
        merges += tied
        overlapping = None if notes else _overlapping(tied)
        if overlapping is not None:
            notes.append(
                f"tokens {overlapping[0]!r} and {overlapping[1]!r}, and maybe others, have the same score, {score:g}: if both "
                "fit, llama.cpp uses the leftmost, but the new tokenizer always the same one"
            )
    return merges, [*notes, *_letters_without_token(joinable, vocabulary.types)]


def _halves(text: str, known: Mapping[str, str]) -> Iterator[Pair]:
    """Yield the pairs of pieces that form a piece. known: a single string object for each piece, which saves memory."""
    for cut in range(1, len(text)):
        left, right = known.get(text[:cut]), known.get(text[cut:])
        if left is not None and right is not None:
            yield left, right


def _overlapping(tied: Sequence[Pair]) -> Pair | None:
    """Return two pieces whose pairs can overlap in a text, or None. The text then determines which pair is joined."""
    made_from: dict[str, list[str]] = {}
    for left, right in tied:
        known = made_from.setdefault(left, [])
        if len(known) < 2 or (len(known) == 2 and _is_run(known[0]) and _is_run(known[1])):
            known.append(left + right)
    for left, right in tied:
        text = left + right
        for other in made_from.get(right, ()):
            if other != text and not (_is_run(text) and _is_run(other)):  # runs grow as in llama.cpp
                return text, other
    return None


def _is_run(text: str) -> bool:
    return len({*text}) == 1


def _letters_without_token(known: Mapping[str, int], types: Sequence[int]) -> Iterator[str]:
    """Yield a note on pieces with letters that are not pieces.

    llama.cpp can form such pieces, but a list of pairs cannot.
    """
    for text, number in known.items():
        lacking = next((letter for letter in text if letter not in known), None)
        if len(text) > 1 and lacking is not None and types[number] != BYTE:
            yield (
                f"token {text!r}, and maybe others, contains the letter {lacking!r}, which has no token: llama.cpp may form "
                "the token, but the new tokenizer splits the letter into bytes"
            )
            return


# --- t5


def likeliest(values: Mapping[str, Value], vocabulary: Vocabulary, unknown: int | None, where: str) -> Core:
    """Return the components of a Unigram. Raises: LossyExport without an unknown token; CorruptFile."""
    if unknown is None:
        raise LossyExport(
            f"does not set {PREFIX}unknown_token_id, which the {MODEL} t5 requires", where=where, try_=AGAIN
        )
    scores = _scores(values, vocabulary, where)
    # An unknown letter costs the lowest score: in the library of all tokens, in llama.cpp of normal tokens.
    lowest = min((scores[n] for n in vocabulary.ids.values() if vocabulary.types[n] == NORMAL), default=0.0)
    rows = max(vocabulary.ids.values()) + 1
    listed = [[f"[PAD{number}]", lowest] for number in range(rows)]
    for text, number in vocabulary.ids.items():
        listed[number] = [text, max(scores[number], lowest)]
    model = {"type": "Unigram", "unk_id": unknown, "vocab": listed, "byte_fallback": False}
    charsmap = _charsmap(values, where)
    parts: list[Component] = []
    if charsmap:
        parts.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    merged = read_bool(values, ONE_SPACE, False, where)
    prefixed = merged or read_bool(values, ADD_SPACE, False, where)
    parts += [
        *([_replaced(r"\A +| +\z", ""), _replaced(" {2,}", " ")] if merged else []),
        # A text that consists of spaces gets no space in front.
        *([{"type": "Prepend", "prepend": " "}, _replaced(r"\A (?= *\z)", "")] if prefixed else []),
        SPELLED,
    ]
    decoder = {
        "type": "Metaspace",
        "replacement": SPACE,
        "prepend_scheme": "always" if prefixed else "never",
        "split": False,
    }
    return Core(model, decoder, sequence("normalizers", parts), notes=(CHARSMAP_NOTE,) if charsmap else ())


def _replaced(expression: str, by: str) -> Component:
    return {"type": "Replace", "pattern": {"Regex": expression}, "content": by}


def _charsmap(values: Mapping[str, Value], where: str) -> bytes:
    value = values.get(CHARSMAP)
    if value is None:
        return b""
    if value.element not in (ValueType.U8, ValueType.I8) or not 4 < value.count <= MAX_CHARSMAP:
        raise CorruptFile(
            f"{CHARSMAP} is {shown(value.label)} of {value.count:,}; it must be 5 to {MAX_CHARSMAP:,} bytes",
            where=where,
        )
    return bytes(value.decode())  # type: ignore[arg-type]
