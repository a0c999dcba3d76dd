"""Measures that predict use, as tables with legends. Measures and judges nothing."""

from __future__ import annotations

from ropetool.sections import BAD, GOOD, NONE, WARN, Cell, Section, Table, change, number, row, with_interval
from ropetool.verification.results import (
    BETTER,
    NO_WORSE,
    NOT_JUDGED,
    UNDECIDED,
    WORSE,
    CacheResult,
    EffectiveLengthResult,
    HarnessResult,
    ManyShotResult,
)

TOO_LONG = "if the true ratio is on the limit, they call a length no worse in 4 to 8 % of simulated runs, with one task in up to 13 %"
TONES = {BETTER: GOOD, NO_WORSE: "", UNDECIDED: WARN, WORSE: BAD, NOT_JUDGED: "", "": ""}


def effective_length_section(found: EffectiveLengthResult, trained_length: int) -> Section:
    """Return the right answers of each task by length, their score, and how it compares with the trained length's."""
    lengths = sorted({length for task in found.tasks for length in task.hits})
    steps = {step.length: step for step in found.steps}
    compared = [steps.get(length) for length in lengths]
    rows = [
        row(task.name, f"{task.chance:.2f}", str(task.own), *(str(task.hits[length]) for length in lengths))
        for task in found.tasks
    ]
    if found.steps:
        score = number(found.own or 0.0)
        rows += [
            row("score", NONE, score, *(NONE if s is None else number(s.score) for s in compared)),
            row("ratio", NONE, NONE, *(NONE if s is None else number(s.ratio) for s in compared)),
            row("95 % bounds", NONE, NONE, *(NONE if s is None else f"{s.lower:.2f}..{s.upper:.2f}" for s in compared)),
            row("verdict", NONE, NONE, *(NONE if s is None else Cell(s.verdict, TONES[s.verdict]) for s in compared)),
        ]
    legend = (
        ("task", f"right answers of {found.trials} trials by length in tokens; the same trials at every length"),
        ("chance", "the share that a blind guesser has right"),
        ("own", f"those at the trained length of {trained_length} tokens, the baseline's where there is one"),
        ("score", "the share of right answers over all tasks, 0 for a guesser and 1 for all"),
        (
            "ratio",
            f"to the score at the trained length; no worse: lower bound {found.kept:g} or more; worse: significantly less",
        ),
        ("bounds", TOO_LONG),
    )
    notes = (found.note,) if found.note else ()
    head = ("task", "chance", "own", *map(str, lengths))
    title = f"Effective length: {_length(found)}"
    return Section("effective-length", title, Table(head, tuple(rows), words=(0,)), legend, notes)


def _length(found: EffectiveLengthResult) -> str:
    if found.longest is None:
        return "not judged"
    first = found.steps[0].length
    likely, surely, possibly = (
        str(n) if n else f"less than {first}" for n in (found.longest, found.surely, found.possibly)
    )
    more = " or more" if found.possibly == found.steps[-1].length else ""
    return f"{likely} tokens (bounds: {surely} to {possibly}{more})"


def many_shot_section(found: ManyShotResult, trained_length: int) -> Section:
    """Return what the label of a word costs behind as many shots as each length holds."""
    rows = tuple(
        row(
            str(entry.length), str(entry.shots), f"{entry.seen:.2f}", f"{entry.hits}/{found.trials}",
            with_interval(entry.loss), change(entry.gain), Cell(entry.verdict or NONE, TONES[entry.verdict]),
        )
        for entry in found.lengths
    )  # fmt: skip
    legend = [
        (
            "shots",
            "words with one of four arbitrary labels, other text between them; the last one's label is asked for",
        ),
        ("shown", "the share of trials whose word is among the shots: what can be known"),
        ("right", "how often the right label was the likeliest of the four"),
        ("loss", "nats of the right label among the four (95 % interval over trials); a guess costs 1.386"),
        ("gain", f"over the shots of the trained length of {trained_length} tokens, paired, ± its 95 % interval"),
    ]
    if found.own is not None:
        legend.append(("own", f"{with_interval(found.own)} behind those, the baseline's where there is one"))
    notes = (found.note,) if found.note else ()
    head = ("length", "shots", "shown", "right", "loss", "gain", "verdict")
    title = "Many-shot learning: do more examples help?"
    return Section("many-shot", title, Table(head, rows), tuple(legend), notes)


def cache_section(found: CacheResult) -> Section:
    """Return how far generation with a growing cache is from whole passes, by length."""
    rows = tuple(
        row(
            f"{entry.prompt}-{entry.length - 1}", "crosses the trained length" if entry.crosses else "",
            str(entry.tokens), number(entry.mean), number(entry.maximum), f"{entry.same:.3f}",
        )
        for entry in found.lengths
    )  # fmt: skip
    legend = (
        ("positions", "of the tokens generated one after the other, behind a prompt of all before them"),
        ("KL", f"KL(whole pass || generation), nats a token, computed in {found.rounding}"),
        ("same", "how often both have the same likeliest token"),
    )
    moving = (
        "the table follows the length: the whole pass rotates all keys by the table of its length, a cache keeps those of "
        "earlier ones, so generation is not what losses are measured of"
    )
    head = ("positions", "", "tokens", "mean KL", "maximum", "same")
    notes = (moving,) if found.moving else ()
    title = "Cached generation: does a growing cache give what a whole pass gives?"
    return Section("cache", title, Table(head, rows, words=(0, 1)), legend, notes)


def harness_section(found: HarnessResult) -> Section:
    """Return what lm-evaluation-harness logged of both models, task by task."""
    rows = tuple(
        row(
            score.task, f"{score.metric}{'' if score.filter == 'none' else f', {score.filter}'}", str(score.samples),
            number(score.own), number(score.score), f"{score.difference:+.3f}", f"{score.lower:+.3f}..{score.upper:+.3f}",
            score.kind, Cell(score.verdict, TONES[score.verdict]),
        )
        for score in found.scores
    )  # fmt: skip
    legend = (
        ("own", "the baseline's score, as a part of a full one; score: the target's"),
        ("gain", "of the target over the baseline, sample by sample, also where lower is better; its 95 % bounds"),
        ("kind", "exact: right or wrong; numeric: by documents; unpaired: beyond what the baseline was asked, against its own length"),
    )  # fmt: skip
    notes = (found.note,) if found.note else ()
    head = ("task", "metric", "samples", "own", "score", "gain", "95 % bounds", "kind", "verdict")
    return Section("lm-eval", "Tasks of lm-evaluation-harness", Table(head, rows, words=(0, 1, 7)), legend, notes)
