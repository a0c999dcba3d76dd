"""The effect of a BPE's merges on words and pairs, if llama.cpp uses other rules than the list of merges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_STEPS = 1 << 26  # of joining pairs, half a microsecond each


def merge_pairs(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the two parts of each merge. Files store a merge as a list, or as text with a space between the parts."""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def merges_make_every_token(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether the merges produce every token of the vocabulary from its letters. Added tokens do not count.

    If so, ignore_merges, which skips the merges for words that are tokens, has no effect. This is true for the
    vocabularies of GPT-2 and Qwen 2. The merges split 588 tokens of Llama 3 into parts.
    """
    ranks = {pair: rank for rank, pair in enumerate(merge_pairs(tokenizer["model"]))}
    listed = [token.get("content") for token in tokenizer.get("added_tokens") or [] if isinstance(token, Mapping)]
    added = {text for text in listed if isinstance(text, str)}
    longer = [text for text in tokenizer["model"]["vocab"] if len(text) > 1 and text not in added]
    if sum(len(text) ** 2 for text in longer) > MAX_STEPS:
        return False  # published vocabularies take less than a quarter of this
    return all(len(_merged(text, ranks)) == 1 for text in longer)


def _merged(text: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the tokens of a word.

    Joins the pair with the lowest rank, the leftmost first, until no pair has a rank.
    """
    parts = list(text)
    last = len(ranks)
    while len(parts) > 1:
        pair_ranks = [ranks.get(pair, last) for pair in itertools.pairwise(parts)]
        best = min(pair_ranks)
        if best == last:
            break
        at = pair_ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def pair_scores(model: Mapping[str, Any]) -> dict[str, float]:
    """Return a score for each token that a merge produces. An earlier merge has a higher score."""
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merge_pairs(model)):
        scores.setdefault(left + right, -float(rank))
    return scores


def pairs_without_merge(texts: Iterable[str], model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that together are a token, but that no merge joins.

    llama.cpp's SentencePiece joins any two tokens whose text is a token, in the order of its score.
    """
    merges = set(merge_pairs(model))
    known = set(texts)
    for text in known:
        for cut in range(1, len(text)):
            pair = (text[:cut], text[cut:])
            if pair[0] in known and pair[1] in known and pair not in merges:
                yield pair
