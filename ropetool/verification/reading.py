"""Whether the longer context is read, by what is paired with the trained length: answers, copies and the position probe.

Each figure stands beside the same trials, or the same tokens, within the trained length. Measures nothing; formulas and
reasons stand in docs/suites.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropetool.verification.gate import NOTHING_BEYOND, Grade
from ropetool.verification.results import (
    FAIL,
    NOT_ASKED,
    NOT_JUDGED,
    NOT_RUN,
    PASS,
    UNDECIDED,
    WORSE,
    CacheResult,
    Check,
    EffectiveLengthResult,
    FarResult,
    HarnessResult,
    KeyTokenResult,
    ManyShotResult,
    PositionResult,
    RetrievalPair,
    RetrievalResult,
)
from ropetool.verification.shares import chance_of_so_few
from ropetool.verification.statistics import (
    chance_of_less,
    chance_of_more,
    lower_bound,
    rejected,
    upper_bound,
)

COPIES, POSITION = "copies", "position"
# Nats a token that generation may be off a whole pass by the order in which sums are taken: 15 times and more what the demo is,
# in torch and in llama.cpp; other types, ggml's, round the inputs too.
ROUNDING = {"float64": 1e-8, "float32": 1e-8, "F32": 1e-8, "float16": 1e-4, "F16": 1e-4}
COARSE = 2e-3


def retrieval_checks(grid: RetrievalResult, grade: Grade, trained_length: int, copies: bool) -> list[Check]:
    """Return the checks on the answers chosen among the candidates, and on those that greedy generation writes.

    copies: whether those were measured, which stand in for answers that the model does not give at any length.
    """
    return [_answers(grid, grade, trained_length, copies, generated) for generated in (False, True)]


def _answers(grid: RetrievalResult, grade: Grade, trained_length: int, copies: bool, generated: bool) -> Check:
    """Return whether the answers at the longest length are as right as their twins within the trained length.

    It fails where that is surely not so at some length or depth, all of them together by Holm's rule: a depth that is not
    read does not hide behind those that are. It passes where the answers of all depths together show it, and each depth by
    itself shows that it is read at all. Where the twins themselves are hardly better than a guess nothing is said.
    """
    name = f"retrieval, {grid.task}{', written' if generated else ''}"
    pairs = [pair for pair in grid.pairs if pair.generated == generated]
    beyond = [pair for pair in pairs if pair.length > trained_length and pair.depth is None]
    stand_in = (NOT_ASKED, "; copies stand in") if copies else (NOT_RUN, "")
    if not beyond and grid.note:
        return Check(name, None, None, stand_in[0], f"{grid.note}{stand_in[1]}")
    if not beyond:
        return Check(name, None, None, NOT_RUN, NOTHING_BEYOND)
    last = max(beyond, key=lambda pair: pair.length)
    own = last.own / last.trials
    if own < max(2 * grid.chance, grid.chance + 2 * grade.max_lost):
        told = f"within {trained_length} tokens {last.own} of {last.trials} are right, a blind guess {grid.chance:.2f}"
        return Check(name, None, None, stand_in[0], f"{told}{stand_in[1]}")
    limit = own - grade.max_lost
    lost = rejected([chance_of_so_few(pair.gained, pair.lost, pair.trials, -grade.max_lost) for pair in pairs])
    worse = [pair for pair, sure in zip(pairs, lost, strict=True) if sure]
    if worse:
        first = min(worse, key=lambda pair: (pair.depth is not None, pair.upper))
        limit = first.own / first.trials - grade.max_lost
        return Check(name, first.hits / first.trials, limit, FAIL, f"{_beside(first, trained_length)}; surely worse")
    if not grade.reads_far:
        return Check(name, last.hits / last.trials, limit, PASS, f"{_beside(last, trained_length)}; not surely worse")
    told = _beside(last, trained_length)
    dark = [
        f"{p.depth:.2f}" for p in pairs if p.length == last.length and p.depth is not None and _may_be_dead(p, grid)
    ]
    if last.lower >= -grade.max_lost and not dark:
        return Check(name, last.hits / last.trials, limit, PASS, told)
    dark_told = f"; not shown to be read at depth {', '.join(dark)}" if dark else ""
    told = f"{told}{dark_told}; --trials with more of them decides"
    return Check(name, last.hits / last.trials, limit, UNDECIDED, told)


def _may_be_dead(pair: RetrievalPair, grid: RetrievalResult) -> bool:
    """Return whether the answers at a depth may be guesses, and those of the twins are not."""
    own = pair.own / pair.trials
    return own > grid.chance and pair.lower <= grid.chance - own


def _beside(pair: RetrievalPair, trained_length: int) -> str:
    depth = "" if pair.depth is None else f", depth {pair.depth:.2f}"
    return (
        f"{pair.hits} of {pair.trials} right at {pair.length} tokens{depth}, {pair.own} of the same at {trained_length}: "
        f"difference {pair.difference:+.2f}, 95 % bounds {pair.lower:+.2f} and {pair.upper:+.2f}"
    )


def copies_check(found: FarResult, grade: Grade) -> Check:
    """Return whether copies beyond the trained length help as much as within it, and help at all at the farthest."""
    beyond = [(entry, entry.change) for entry in found.distances if entry.change is not None]
    if found.note or not beyond:
        return Check(COPIES, None, None, NOT_RUN, found.note or NOTHING_BEYOND)
    own = found.own.mean if found.own is not None else 0.0
    limit = own - grade.max_lost
    lost = rejected([chance_of_more(change, -grade.max_lost) for _, change in beyond])
    worse = [entry for (entry, _), sure in zip(beyond, lost, strict=True) if sure]
    entry, change = max(beyond, key=lambda each: each[0].distance)
    if worse:
        entry = min(worse, key=lambda each: each.gain.mean)
        change = entry.change or change
    told = (
        f"gain from a copy {entry.distance} tokens before, {own:.2f} at {found.within}: difference {change.mean:+.2f}, "
        f"95 % bounds {lower_bound(change):+.2f} and {upper_bound(change):+.2f}"
    )
    if worse:
        return Check(COPIES, entry.gain.mean, limit, FAIL, f"{told}; surely worse")
    if not grade.reads_far:
        return Check(COPIES, entry.gain.mean, limit, PASS, f"{told}; not surely worse")
    if lower_bound(entry.gain) <= 0:
        return Check(COPIES, entry.gain.mean, limit, UNDECIDED, f"{told}; not shown to be above 0")
    return Check(COPIES, entry.gain.mean, limit, PASS if lower_bound(change) >= -grade.max_lost else UNDECIDED, told)


def key_tokens_check(found: KeyTokenResult, name: str = "key tokens") -> Check:
    """Return the line on key tokens, which informs: as proof that far text is read they count under `far text`."""
    if found.note or found.gain is None:
        return Check(name, None, None, NOT_ASKED, found.note)
    told = (
        f"95 % lower bound of the gain over truncation on {found.tokens} of {found.scored} tokens, nats a token; "
        f"the mean is {found.gain.mean:.2f}"
    )
    return Check(name, lower_bound(found.gain), 0.0, NOT_ASKED, told)


def effective_length_check(found: EffectiveLengthResult, context_length: int) -> Check:
    """Return the line on the effective length beside the stated context, which informs."""
    name = "effective length"
    if found.longest is None or found.own is None:
        return Check(name, None, None, NOT_ASKED, found.note)
    reached = found.steps[-1].length
    longest, surely, possibly = (
        _length(n, found.steps[0].length) for n in (found.longest, found.surely, found.possibly)
    )
    more = " or more" if found.possibly == reached else ""
    told = f"tokens up to which {found.kept:g} of a score of {found.own:.2f} is kept: {longest}; bounds {surely} to {possibly}{more}"
    return Check(name, float(found.longest), float(context_length), NOT_ASKED, told)


def cache_check(found: CacheResult) -> Check:
    """Return whether generation with a cache has the logits of whole passes, beyond rounding.

    Where the table follows the length it has not, by the method, and that is told.
    """
    limit = ROUNDING.get(found.rounding, COARSE)
    worst = max(found.lengths, key=lambda entry: entry.mean)
    told = f"KL, nats a token, from a whole pass to generation behind {worst.prompt} tokens, the largest"
    if worst.mean <= limit:
        return Check("cache", worst.mean, limit, PASS, told)
    if found.moving:
        return Check(
            "cache", worst.mean, limit, NOT_ASKED,
            f"{told}; the table follows the length, and keys in the cache stay rotated by that of their time",
        )  # fmt: skip
    return Check("cache", worst.mean, limit, FAIL, told)


def harness_check(found: HarnessResult, grade: Grade) -> Check:
    """Return whether other people's tasks lose no more than the grade allows, each by its own bounds."""
    name, limit = "lm-eval", -grade.max_lost
    judged = [score for score in found.scores if score.verdict != NOT_JUDGED]
    if not judged:
        return Check(name, None, limit, NOT_RUN, "every score has too few samples")
    worse = [score for score in judged if score.verdict == WORSE]
    unsure = [score for score in judged if score.verdict == UNDECIDED]
    at = min(worse or judged, key=lambda score: score.lower)
    told = f"95 % lower bound of what {at.task}, {at.metric}, gains, the lowest of {len(judged)} scores"
    if worse:
        told = f"95 % upper bound of what {at.task}, {at.metric}, gains; surely worse: {len(worse)} of {len(judged)} scores"
        return Check(name, at.upper, limit, FAIL, told)
    if unsure and grade.reads_far:
        names = ", ".join(dict.fromkeys(score.task for score in unsure))
        return Check(name, at.lower, limit, UNDECIDED, f"{told}; more samples decide {names}")
    return Check(name, at.lower, limit, PASS, f"{told}; not surely worse" if unsure else told)


def many_shot_check(found: ManyShotResult) -> Check:
    """Return the line on learning from the shots of the longest length, which informs."""
    name = "many-shot"
    last = found.lengths[-1] if found.lengths else None
    if last is None or last.gain is None:
        return Check(name, None, None, NOT_ASKED, found.note)
    told = (
        f"95 % lower bound of the gain of {last.shots} shots over those that the trained length holds, nats a label; "
        f"the mean is {last.gain.mean:.2f}"
    )
    return Check(name, lower_bound(last.gain), 0.0, NOT_ASKED, told)


def _length(length: int | None, first: int) -> str:
    return str(length) if length else f"less than {first}"


def position_check(found: PositionResult, grade: Grade) -> Check:
    """Return whether a passage costs no more behind far text than the baseline's behind what fits its trained length.

    It passes or informs: an honest extension of a small model may cost more there, and works.
    """
    judged = [(entry, entry.difference) for entry in found.offsets if entry.difference is not None]
    if found.note or not any(entry.filler > found.within for entry, _ in judged):
        return Check(POSITION, None, grade.margin, NOT_RUN, found.note or NOTHING_BEYOND)
    uppers = [upper_bound(difference) for _, difference in judged]
    surely = rejected([chance_of_less(difference, grade.margin) for _, difference in judged])
    places: Sequence[int] = [i for i, sure in enumerate(surely) if sure] or range(len(judged))
    at = max(places, key=lambda i: judged[i][1].mean if any(surely) else uppers[i])
    entry, difference = judged[at]
    where = f"nats a token behind {entry.filler} tokens of other text, minus the baseline's within its trained length"
    if any(surely):
        return Check(POSITION, lower_bound(difference), grade.margin, NOT_ASKED, f"95 % lower bound: {where}")
    verdict = PASS if uppers[at] <= grade.margin else NOT_ASKED
    return Check(POSITION, uppers[at], grade.margin, verdict, f"95 % upper bound, the largest: {where}")
