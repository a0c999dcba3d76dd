"""The measurements as tables with legends, the same ones for the terminal and for HTML. Measures and judges nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ropetool.report.beside import yardstick_sections
from ropetool.report.grids import divergence_section, retrieval_section
from ropetool.report.layout import counted
from ropetool.report.predicting import (
    cache_section,
    effective_length_section,
    harness_section,
    many_shot_section,
)
from ropetool.sections import (
    BAD,
    GOOD,
    NONE,
    WARN,
    Cell,
    Section,
    Table,
    change,
    number,
    perplexity,
    row,
    with_interval,
    yes_no,
)
from ropetool.verification.results import (
    BETTER,
    NO_WORSE,
    NOT_JUDGED,
    UNDECIDED,
    WORSE,
    FarResult,
    KeyTokenResult,
    LengthResult,
    LongPassResult,
    PositionResult,
    ProtocolResult,
    VerifyResult,
)

JUDGED = {BETTER: GOOD, NO_WORSE: "", WORSE: BAD, UNDECIDED: WARN, NOT_JUDGED: WARN}


def sections(result: VerifyResult) -> Iterator[Section]:
    """Yield what was measured, in the order of a report."""
    if result.lengths:
        yield _loss(result)
        yield _worth(result)
    if any(entry.kinds for entry in result.lengths):
        yield _kinds(result)
    if result.protocols:
        yield _protocols(result.protocols)
    if result.position is not None:
        yield _position(result.position)
    if result.far is not None:
        yield _far(result.far)
    for index, grid in enumerate(result.retrieval):
        yield retrieval_section(grid, result.trained_length, explained=index == 0)
    if result.long_pass is not None:
        yield _long_pass(result.long_pass)
    if result.key_tokens is not None:
        yield _key_tokens(result.key_tokens, result.judge)
    if result.needle_answers is not None:
        yield _needle_answers(result.needle_answers, result.trained_length)
    if result.effective_length is not None:
        yield effective_length_section(result.effective_length, result.trained_length)
    if result.many_shot is not None:
        yield many_shot_section(result.many_shot, result.trained_length)
    if result.cache is not None:
        yield cache_section(result.cache)
    if result.lm_eval is not None:
        yield harness_section(result.lm_eval)
    if result.yardsticks:
        yield from yardstick_sections(result)
    if result.divergence is not None:
        yield divergence_section(result.divergence, result.trained_length)


def _loss(result: VerifyResult) -> Section:
    trained, limit = result.trained_length, asked(result)
    shown = {
        NOT_JUDGED: NONE,
        NO_WORSE: f"within {limit}",
    }  # beside a ratio above 1, "no worse" would read as a contradiction
    rows = tuple(
        row(
            str(entry.length),
            Cell(shown.get(entry.verdict, entry.verdict), JUDGED[entry.verdict]),
            number(entry.ratio),
            NONE if entry.upper is None else number(entry.upper),
            perplexity(entry.target),
            perplexity(entry.baseline),
            Cell(f"{entry.segments} in {texts_of(entry)}{'!' if entry.partial else ''}", WARN if entry.partial else ""),
            _bits(entry.target_bits),
            _bits(entry.baseline_bits),
        )
        for entry in result.lengths
    )
    legend = (
        ("length", "tokens of model input, always ending on the same tokens"),
        (
            "verdict",
            f"better: the ratio is surely below 1; within {limit}: surely not above it, which the grade "
            "allows; worse: surely above it; undecided: "
            "too little text to tell; -: none is given",
        ),
        ("ratio", f"ppl of the target over that of the baseline at min(length, {trained})"),
        ("at most", "what the true ratio is below, with 95 % confidence"),
        ("ppl", "exp(loss) of the scored tokens (95 % interval over documents; none for a single document)"),
        ("segments", f"places of {result.scored} scored tokens, and in how many texts they lie; ! too few"),
        ("bits", "per byte of the scored text: loss x tokens / (ln 2 x bytes)"),
    )
    head = (
        "length",
        "verdict",
        "ratio",
        "at most",
        "ppl target",
        "ppl baseline",
        "segments",
        "bits target",
        "bits baseline",
    )
    notes = tuple(f"{entry.length}: {entry.note}" for entry in result.lengths if entry.note)
    return Section("loss", "Last segment: does quality hold?", Table(head, rows, words=(1,)), legend, notes)


def _worth(result: VerifyResult) -> Section:
    trained = result.trained_length
    rows = tuple(
        row(
            str(entry.length),
            change(entry.difference_to_truncation, -1),
            yes_no(entry.useful, WARN),
            change(entry.doubling, -1),
            change(entry.tax),
        )
        for entry in result.lengths
    )
    legend = (
        (
            "gain",
            f"nats a token saved on the baseline that reads only the last min(length, {trained}) tokens (± 95 %, paired)",
        ),
        ("useful", "the verdict is better: the gain is surely above 0 over all lengths together"),
        ("doubling", "nats a token that the target saves on itself at the length before"),
        (
            "regression",
            f"short-context regression: nats a token that the target costs more than the baseline at the same length, up to {trained}",
        ),
    )
    head = ("length", "gain over truncation", "useful", "gain of doubling", "regression")
    return Section(
        "worth", "Last segment: does the longer context help, and what does it cost?", Table(head, rows), legend
    )


def _kinds(result: VerifyResult) -> Section:
    """Return the differences by kind of text, at the trained length and at the longest one."""
    trained = [entry for entry in result.lengths if entry.length <= result.trained_length]
    shown = {entry.length: entry for entry in (*trained[-1:], result.lengths[-1])}
    rows = tuple(
        row(
            str(length),
            of.kind,
            str(of.difference.documents),
            number(math.exp(of.difference.mean)),
            change(of.difference),
        )
        for length, entry in shown.items()
        for of in entry.kinds
    )
    legend = (("change", "nats a token, target minus baseline, as for the ratio above, paired, ± its 95 % interval"),)
    head = ("length", "kind of text", "documents", "ratio", "change")
    return Section("kinds", "Last segment: by kind of text", Table(head, rows, words=(1,)), legend)


def texts_of(entry: LengthResult) -> str:
    """Return in how many texts the segments of a length lie."""
    return counted(entry.documents, "text")


def asked(result: VerifyResult) -> str:
    """Return the limit of the ratio, as the gate states it."""
    limits = [check.limit for check in result.checks if check.name == "ratio" and check.limit is not None]
    return f"{limits[0]:g}" if limits else "the limit"


def _protocols(found: Sequence[ProtocolResult]) -> Section:
    rows = tuple(
        row(
            protocol.protocol,
            str(entry.length),
            str(entry.target.tokens),
            perplexity(entry.baseline),
            perplexity(entry.target),
            change(entry.difference),
            _bits(entry.baseline_bits),
            _bits(entry.target_bits),
        )
        for protocol in found
        for entry in protocol.lengths
    )
    legend = (
        *((protocol.protocol, protocol.note) for protocol in found if protocol.note),
        ("window", "in tokens; every scored token counts alike, in whatever window it lies"),
        ("change", "nats a token, target minus baseline, paired, ± its 95 % interval"),
    )
    head = ("protocol", "window", "tokens", "ppl baseline", "ppl target", "change", "bits baseline", "bits target")
    return Section("protocols", "Perplexity by published protocols", Table(head, rows, words=(0,)), legend)


def _bits(value: float | None) -> str:
    return NONE if value is None else number(value)


def _position(found: PositionResult) -> Section:
    rows = tuple(
        row(str(entry.filler), with_interval(entry.loss), change(entry.change), change(entry.difference))
        for entry in found.offsets
    )
    if found.baseline is not None:
        rows = (*rows, row("baseline", with_interval(found.baseline), NONE, NONE))
    legend = [
        ("filler", "tokens of other documents in front of the passage"),
        ("loss", f"nats a token of the last {found.scored} of {found.passage} tokens (95 % interval over documents)"),
        ("change", "from no filler, paired, ± its 95 % interval; above 0: the position alone does harm"),
    ]
    if any(entry.difference for entry in found.offsets):
        legend.append(
            ("difference", "from the baseline's behind the part of the filler that fits its trained length, paired")
        )
    if found.baseline is not None:
        legend.append(("baseline", "without filler"))
    title = f"Position probe: {found.passages} passages of {found.documents} documents behind filler"
    notes = (found.note,) if found.note else ()
    return Section("position", title, Table(("filler", "loss", "change", "difference"), rows), tuple(legend), notes)


def _long_pass(found: LongPassResult) -> Section:
    rows = tuple(
        row(
            f"{span.start}-{span.end - 1}",
            with_interval(span.truncated),
            with_interval(span.loss),
            change(span.difference),
        )
        for span in found.spans
    )
    legend = (
        ("position", f"of the tokens in rows of {found.length}"),
        (
            "truncated",
            "nats a token, of the baseline behind text of its trained length; loss: of the target in one pass",
        ),
        ("difference", "loss minus truncated, same tokens, ± its 95 % interval; above 0: the pass does harm there"),
    )
    notes = (found.note,) if found.note else ()
    head = ("position", "truncated", "loss", "difference")
    title = f"Loss by position: {found.places} passes of {found.documents} documents"
    return Section("by-position", title, Table(head, rows), legend, notes)


def _key_tokens(found: KeyTokenResult, judge: str | None) -> Section:
    values = (found.truncated, found.loss)
    cells = [NONE if value is None else with_interval(value) for value in values]
    rows = (row(f"{found.tokens} of {found.scored}", *cells, change(found.gain)),)
    by = f"chosen by {judge}" if judge else "of the farthest copies, without a judge"
    legend = (
        ("tokens", f"{by}, in {found.places} places of {found.documents} documents"),
        ("truncated", f"nats a token behind the text that fits the trained length; long: behind {found.length} tokens"),
        (
            "gain",
            "truncated minus long, or what the copy gives, paired, ± its 95 % interval; above 0: far text is read",
        ),
    )
    notes = (found.note,) if found.note else ()
    head = ("tokens", "truncated", "long", "gain")
    return Section("key-tokens", "Key tokens: those that far text alone tells", Table(head, rows), legend, notes)


def _needle_answers(found: KeyTokenResult, trained: int) -> Section:
    cells = [NONE if value is None else with_interval(value) for value in (found.truncated, found.loss)]
    legend = (
        ("answers", f"of the trials of retrieval whose sentence stands more than {trained} tokens before the question"),
        ("truncated", f"nats an answer behind the last {trained} tokens; long: behind {found.length}"),
        ("gain", "truncated minus long, paired by trial, ± its 95 % interval; above 0: far text is read"),
    )
    notes = (found.note,) if found.note else ()
    head = ("answers", "truncated", "long", "gain")
    rows = (row(str(found.tokens), *cells, change(found.gain)),)
    return Section("needle-answers", "Needle answers: as key tokens, without a judge", Table(head, rows), legend, notes)


def _far(found: FarResult) -> Section:
    rows = tuple(
        row(
            str(entry.distance),
            change(entry.gain),
            change(entry.change),
            with_interval(entry.repeated),
            with_interval(entry.unrelated),
        )
        for entry in found.distances
    )
    legend = (
        ("distance", "tokens from a token to its copy"),
        ("gain", "repeated minus unrelated, paired, ± its 95 % interval; above 0: it is read from that far"),
        ("change", "the gain minus the baseline's within its trained length, paired"),
        (
            "repeated",
            f"share of the last {found.scored} tokens of {found.passage} predicted behind their own copy",
        ),
        ("unrelated", "the same behind another text (95 % intervals over documents)"),
    )
    head = ("distance", "gain", "change", "repeated", "unrelated")
    title = f"Far dependence: {found.passages} passages of {found.documents} documents"
    notes = (found.note,) if found.note else ()
    return Section("far", title, Table(head, rows), legend, notes)
