"""The record of real servers: every option is named as what it amounts to, and the record is of the script's rows."""

from __future__ import annotations

from loading import script

identified = script("identify/identified.py")
identified_page = script("identify/identified_page.py")


def test_every_recorded_row_is_named_as_what_it_amounts_to() -> None:
    rows = {tuple(one[key] for key in identified.Row._fields): one for one in identified_page.known()}
    assert rows.keys() <= set(identified.ROWS)
    assert len(rows) >= 40
    wrong = [row for row, found in rows.items() if found["name"] != found["means"] or found["rivals"]]
    assert not wrong


def test_the_page_has_each_of_them() -> None:
    page = identified_page.table()
    assert all(f"`{row['options']}`" in page for row in identified_page.known() if row["options"])
