"""What the merges of a BPE make of words and pairs, where llama.cpp goes by other rules than its list of merges.

Knows nothing of files, bytes or pre-tokenizers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_STEPS = 1 << 26  # of joining pairs, half a microsecond each


def merge_pairs(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the two parts of each merge; files have them as a list, or as text with one space between."""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def merges_make_every_token(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether every token of the vocabulary, added ones aside, is what the merges make of its letters.

    Then it does not matter whether words that are tokens skip the merges (ignore_merges). So it is for GPT-2's and
    Qwen 2's vocabulary; 588 tokens of Llama 3's come out in parts.
    """
    ranks = {pair: rank for rank, pair in enumerate(merge_pairs(tokenizer["model"]))}
    listed = [token.get("content") for token in tokenizer.get("added_tokens") or [] if isinstance(token, Mapping)]
    added = {text for text in listed if isinstance(text, str)}
    longer = [text for text in tokenizer["model"]["vocab"] if len(text) > 1 and text not in added]
    if sum(len(text) ** 2 for text in longer) > MAX_STEPS:
        return False  # no published vocabulary takes a quarter of it
    return all(len(_merged(text, ranks)) == 1 for text in longer)


def _merged(text: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Return the tokens of one word: the pair of lowest rank is joined, the leftmost first, as long as there is one."""
    parts = list(text)
    last = len(ranks)
    while len(parts) > 1:
        found = [ranks.get(pair, last) for pair in itertools.pairwise(parts)]
        best = min(found)
        if best == last:
            break
        at = found.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def pair_scores(model: Mapping[str, Any]) -> dict[str, float]:
    """Return a score for each token that merges make: the sooner a pair may be joined, the higher."""
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merge_pairs(model)):
        scores.setdefault(left + right, -float(rank))
    return scores


def pairs_without_merge(texts: Iterable[str], model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that make a third one, and that the merges do not join.

    llama.cpp's SentencePiece joins any two tokens that make a token, by its score.
    """
    merges = set(merge_pairs(model))
    known = set(texts)
    for text in known:
        for cut in range(1, len(text)):
            pair = (text[:cut], text[cut:])
            if pair[0] in known and pair[1] in known and pair not in merges:
                yield pair
