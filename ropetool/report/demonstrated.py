"""The second half of `ropetool demo`: a factor that stays within a stricter limit, beside the larger one that does not."""

from __future__ import annotations

from ropetool.report.tables import BAD, NONE, Section, Table, number, row, yes_no
from ropetool.verification.results import VerifyResult


def stricter_section(title: str, result: VerifyResult, larger: VerifyResult) -> Section:
    """Return the losses in nats at each length, what the longer context is held against, and how the larger factor did."""
    rows = tuple(
        row(
            str(entry.length),
            f"{entry.target.mean - entry.difference_to_truncation.mean:.3f}" if entry.difference_to_truncation else "-",
            f"{entry.target.mean:.3f}",
            number(entry.ratio),
            NONE if entry.upper is None else number(entry.upper),
            yes_no(entry.holds, BAD),
        )
        for entry in result.lengths
    )
    trained = result.trained_length
    legend = (
        ("loss", f"nats a token; before: of the unextended model, which reads the last {trained} tokens at most"),
        ("ratio", "e to the difference of the two; at most: what the true one is below, with 95 % confidence"),
    )
    ratios = [entry.ratio for entry in larger.lengths]
    note = f"{larger.target}, above: ratios {number(min(ratios))} to {number(max(ratios))}"
    head = ("length", "loss before", "loss", "ratio", "at most", result.grade)
    return Section("stricter", title, Table(head, rows), legend, (note,))
