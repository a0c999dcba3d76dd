"""The report as a folder: what is on the page, what is not, that it loads nothing, and that it appears whole."""

from __future__ import annotations

import base64
import errno
import math
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree
import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sample
from legible import contrast

from ropetool.errors import MissingDependency, OutputError
from ropetool.escaping import install_line
from ropetool.verification.results import VerifyResult

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from ropetool.report import drawing
from ropetool.report.page import check_folder, write_page
from ropetool.report.verdict import summary
from ropetool.report.verified import gate_section, sections, verify_charts, verify_page, verify_text

COMMAND = "ropetool verify demo-yarn-8x --suite full"
VOID = {"meta", "img", "br", "hr", "link", "input"}


@dataclass
class Page(HTMLParser):
    """A page as a parser sees it: tags with attributes, text and what it stands in, and the tables of each section."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tables: dict[str, list[list[list[str]]]] = field(default_factory=dict)
    open_tags: list[str] = field(default_factory=list)
    style: str = ""
    # each text with the tags that it stands in
    placed: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag not in VOID:
            self.open_tags.append(tag)
        if tag == "section":
            self.section = values["id"]
            assert self.section not in self.tables
            self.tables[self.section] = []
        elif tag == "table":
            self.tables[self.section].append([])
        elif tag == "tr":
            self.tables[self.section][-1].append([])
        elif tag in ("td", "th"):
            self.tables[self.section][-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] == "style":
            self.style += data
            return
        self.text.append(data)
        self.placed.append((data, tuple(self.open_tags)))
        if self.open_tags and self.open_tags[-1] in ("td", "th"):
            self.tables[self.section][-1][-1][-1] += data

    def rows(self, section: str, table: int = 0) -> list[list[str]]:
        """Return the cells of a table below its head."""
        return self.tables[section][table][1:]


@cache
def rendered(name: str) -> dict[str, bytes]:
    return sample.render(sample.SAMPLES[name](), COMMAND)


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures be drawn but not encoded, which takes most of the time, where the page alone matters."""
    monkeypatch.setattr(drawing, "encoded", lambda figure, kind: b"")


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open_tags == []
    return page


@pytest.fixture
def files() -> dict[str, bytes]:
    return rendered("full")


# --- what is on the page


def figures(page: Page) -> dict[str, str]:
    """Return the first number of every cell that shows a figure, by section, row and column."""
    found = {}
    for section, tables in page.tables.items():
        for row in tables[0][1:] if tables else []:
            for name, cell in zip(tables[0][0], row, strict=True):
                number = re.match(r"[-+]?(\d[\d.]*(e-?\d+)?|inf)", cell)
                if number and name:
                    found[f"{section} {row[0]}{' ' + row[1] if section in ('protocols', 'kinds') else ''} {name}"] = (
                        number[0]
                    )
    return found


def expected(result: VerifyResult) -> dict[str, float]:
    """Return what those cells have to show, from the definitions of the figures."""
    found: dict[str, float | None] = {}
    for e in result.lengths:
        at = f"loss {e.length}"
        found |= {f"{at} length": e.length, f"{at} segments": e.segments, f"{at} ratio": e.ratio, f"{at} at most": e.upper,
                  f"{at} bits target": e.target_bits, f"{at} bits baseline": e.baseline_bits,
                  f"{at} ppl target": math.exp(e.target.mean),
                  f"{at} ppl baseline": e.baseline and math.exp(e.baseline.mean)}  # fmt: skip
        for of in e.kinds:
            at = f"kinds {e.length} {of.kind}"
            found |= {f"{at} length": e.length, f"{at} documents": of.difference.documents,
                      f"{at} ratio": math.exp(of.difference.mean), f"{at} change": of.difference.mean}  # fmt: skip
        at = f"worth {e.length}"
        gain = e.difference_to_truncation
        found |= {f"{at} length": e.length, f"{at} gain over truncation": gain and -gain.mean,
                  f"{at} gain of doubling": e.doubling and -e.doubling.mean, f"{at} regression": e.tax and e.tax.mean}  # fmt: skip
    for p in result.measures.get("protocols", ()):
        for entry in p.lengths:
            at = f"protocols {p.protocol} {entry.length}"
            found |= {f"{at} window": entry.length, f"{at} tokens": entry.target.tokens,
                      f"{at} ppl target": math.exp(entry.target.mean), f"{at} bits target": entry.target_bits,
                      f"{at} ppl baseline": entry.baseline and math.exp(entry.baseline.mean),
                      f"{at} bits baseline": entry.baseline_bits,
                      f"{at} change": entry.difference and entry.difference.mean}  # fmt: skip
    position, far = result.measures.get("position"), result.measures.get("far")
    for o in position.offsets if position else ():
        at = f"position {o.filler}"
        found |= {f"{at} filler": o.filler, f"{at} loss": o.loss.mean, f"{at} change": o.change and o.change.mean}
    if position and position.baseline:
        found["position baseline loss"] = position.baseline.mean
    for d in far.distances if far else ():
        at = f"far {d.distance}"
        found |= {f"{at} distance": d.distance, f"{at} repeated": d.repeated.mean, f"{at} unrelated": d.unrelated.mean,
                  f"{at} gain": d.gain.mean}  # fmt: skip
    for grid in result.measures.get("retrieval", ()):
        at = f"retrieval-{grid.task}"
        for cell in grid.cells:
            found[f"{at} {cell.depth:.2f} {cell.length}"] = cell.hits
            found[f"{at} {cell.depth:.2f} depth"] = cell.depth
            found[f"{at} all {cell.length}"] = sum(c.hits for c in grid.cells if c.length == cell.length)
            found[f"{at} written {cell.length}"] = sum(c.generated for c in grid.cells if c.length == cell.length)
        for cell in grid.baseline:
            found[f"{at} baseline {cell.length}"] = sum(c.hits for c in grid.baseline if c.length == cell.length)
    spans = (result.divergence.within, result.divergence.beyond) if result.divergence else ()
    for span in spans:
        assert span is not None
        at = f"divergence {span.start}-{span.end - 1}"
        found |= {f"{at} positions": span.start, f"{at} tokens": span.tokens, f"{at} mean KL": span.mean.mean,
                  f"{at} median": span.median, f"{at} 99 %": span.p99, f"{at} maximum": span.maximum,
                  f"{at} top-1": span.top1, f"{at} logits": span.logit_difference}  # fmt: skip
    for check in result.checks:
        found |= {f"gate {check.name} figure": check.figure, f"gate {check.name} limit": check.limit}
    return {name: value for name, value in found.items() if value is not None}


def is_rounded(text: str, value: float) -> bool:
    """Return whether a number as text is a value to within half of its last digit."""
    digits, _, exponent = text.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return float(text) == value or abs(float(text) - value) <= 0.5001 * last


def wrong(page: Page, result: VerifyResult) -> list[str]:
    """Return which cells do not show what the result says."""
    shown, right = figures(page), expected(result)
    assert shown.keys() == right.keys()
    return [name for name, value in right.items() if not is_rounded(shown[name], value)]


@pytest.mark.parametrize("name", ["full", "failing", "minimal"])
def test_the_figures_are_those_of_the_result(name: str) -> None:
    page = parsed(rendered(name)["index.html"].decode())
    assert wrong(page, sample.SAMPLES[name]()) == []


PLANTED: dict[str, tuple[str, str, str]] = {
    "ratio": (">1.28<", ">1.27<", "loss 64 ratio"),
    "perplexity": ("14.9 (13.5-16.5)", "15.9 (13.5-16.5)", "loss 512 ppl target"),
    "sign of a gain": ("+0.087 ± 0.047", "-0.087 ± 0.047", "worth 1024 gain over truncation"),
    "hits": (">13/16<", ">14/16<", "retrieval-keys 0.25 2048"),
    "exponent": ("2.4e-5 ± 6.0e-6", "2.4e-4 ± 6.0e-6", "divergence 256-2047 mean KL"),
    "limit": (">0.75<", ">0.85<", "gate retrieval, keys limit"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_wrong_figure_is_seen(case: str, files: dict[str, bytes]) -> None:
    right, planted, where = PLANTED[case]
    text = files["index.html"].decode()
    assert right in text
    assert wrong(parsed(text.replace(right, planted, 1)), sample.full()) == [where]


def test_a_result_with_another_figure_has_another_page(files: dict[str, bytes]) -> None:
    first, *others = sample.full().lengths
    other = replace(sample.full(), lengths=(replace(first, ratio=1.31), *others))
    assert wrong(parsed(files["index.html"].decode()), other) == ["loss 64 ratio"]


ALWAYS = ["gate", "documents"]
OF_FIELD: dict[str, tuple[list[str], Any]] = {
    "lengths": (["loss", "worth", "kinds"], ()),
    "protocols": (["protocols"], ()),
    "position": (["position"], None),
    "far": (["far"], None),
    "retrieval": (["retrieval-keys", "retrieval-many-keys"], ()),
    "divergence": (["divergence"], None),
    "bands": (["bands"], None),
    "notes": (["notes"], ()),
}


def test_every_measurement_has_its_section_and_plot(files: dict[str, bytes]) -> None:
    page = parsed(files["index.html"].decode())
    sections = [name for names, _ in OF_FIELD.values() for name in names]
    assert sorted(page.tables) == sorted([*ALWAYS, *sections])
    without_plot = {"worth", "kinds", "protocols", "notes"}
    assert sorted(files) == sorted(["index.html", "tax.png", *(f"{n}.png" for n in sections if n not in without_plot)])
    assert sum(tag == "img" for tag, _ in page.tags) == len(files) - 1


@pytest.mark.parametrize("name", OF_FIELD)
@pytest.mark.usefixtures("sketched")
def test_what_was_not_measured_has_none(name: str, files: dict[str, bytes]) -> None:
    absent, nothing = OF_FIELD[name]
    fewer = sample.render(sample.without(name, nothing))
    assert set(parsed(files["index.html"].decode()).tables) - set(parsed(fewer["index.html"].decode()).tables) == set(
        absent
    )
    plots = {f"{section}.png" for section in [*absent, *(["tax"] if name == "lengths" else [])]} & set(files)
    assert set(files) - set(fewer) == plots


def test_the_head_says_what_was_compared_and_how(files: dict[str, bytes]) -> None:
    text = " ".join(" ".join(parsed(files["index.html"].decode()).text).split())
    for part in (
        "pass : demo-yarn-8x (yarn, factor 8), measured up to 2048 tokens against demo and demo-yarn-8x.gguf, is good",
        "target demo-yarn-8x baseline demo against demo-yarn-8x.gguf suite full",
        "transformers 5.23.0, torch 2.13.0, cpu, float32",
        "command ropetool verify demo-yarn-8x --suite full",
        "4 texts, fingerprint sha256:5f2c8b1e0d9a7c64 Names a.txt b.txt letters/c.txt d.jsonl:17",
        "it may know the text by heart",
    ):
        assert part in text


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_the_verdict_stands_before_everything_and_the_gate_before_the_measurements(name: str) -> None:
    page = parsed(rendered(name)["index.html"].decode())
    body = [tag for tag, _ in page.tags[[tag for tag, _ in page.tags].index("body") :]]
    assert body[:4] == ["body", "header", "h1", "b"]
    shown = "".join(text for text, inside in page.placed if "h1" in inside)
    assert shown == summary(sample.SAMPLES[name]())
    assert next(iter(page.tables)) == "gate"


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_every_legend_and_caption_is_folded_away_and_every_note_is_not(name: str) -> None:
    result = sample.SAMPLES[name]()
    page = parsed(rendered(name)["index.html"].decode())
    shown = [gate_section(result), *sections(result)]
    explained = {text for section in shown for _, text in section.legend}
    folded = {text for text, inside in page.placed if "details" in inside}
    plain = {text for text, inside in page.placed if "details" not in inside}
    assert explained
    assert explained <= folded
    assert not explained & plain
    notes = {f"Note: {note}" for section in shown for note in section.notes}
    assert notes <= plain
    captions = {chart.caption for chart in verify_charts(result)}
    assert captions <= folded - plain
    opened = [values for tag, values in page.tags if tag == "details" and "open" in values]
    assert len(opened) == 1  # names of the documents, where they are few


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize(("names", "part"), [([], "all"), (["a", "b"], "2")])
def test_the_catalogue_is_named_by_its_manifest(names: list[str], part: str) -> None:
    texts = {"origin": "catalogue", "documents": 4, "manifest": "0f" * 32, "names": names}
    page = parsed(sample.render(replace(sample.full(), texts=texts), COMMAND)["index.html"].decode())
    assert f"fingerprint sha256:5f2c8b1e0d9a7c64; {part} of the catalogue {'0f' * 32}" in " ".join(
        "".join(page.text).split()
    )


# --- what is not


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


@pytest.mark.usefixtures("sketched")
def test_names_and_notes_are_text() -> None:
    result = replace(
        sample.full(), target=HOSTILE, baseline=HOSTILE, against=HOSTILE, documents=(HOSTILE,), notes=(HOSTILE,),
        runtime=HOSTILE, suite=HOSTILE, text_fingerprint=HOSTILE,
        checks=(replace(sample.CHECKS[0], name=HOSTILE, detail=HOSTILE),),
        divergence=replace(sample.divergence(), reference=HOSTILE, note=HOSTILE),
    )  # fmt: skip
    page = parsed(sample.render(result, HOSTILE)["index.html"].decode())
    assert all(tag != "script" and "onerror" not in values for tag, values in page.tags)
    assert "".join(page.text).count(HOSTILE) >= 10


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_the_page_loads_nothing(name: str) -> None:
    text = rendered(name)["index.html"].decode()
    page = parsed(text)
    assert re.search(r"https?:|url\(|@import|javascript:", text) is None
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    addresses = [values[key] for _, values in page.tags for key in ("src", "href", "srcset", "data") if key in values]
    assert addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in addresses)


def test_the_page_is_made_for_phones(files: dict[str, bytes]) -> None:
    page = parsed(files["index.html"].decode())
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    boxes = [values for tag, values in page.tags if tag == "div" and values.get("class") == "scroll"]
    assert len(boxes) == sum(tag == "table" for tag, _ in page.tags)
    assert wider_than_a_phone(page.style) == []
    assert wider_than_a_phone(page.style.replace("width: 100%", "width: 499px")) == ["499px"]
    assert re.search(r"figure img \{[^}]*width: 100%; height: auto", page.style)  # whatever its attributes say
    assert re.search(r"body \{[^}]*overflow-wrap: anywhere", page.style)
    assert re.search(r"\.scroll \{ overflow-x: auto", page.style)


def wider_than_a_phone(style: str) -> list[str]:
    """Return the widths in a style that ask for more than the 390 pixels of a phone, less its margins."""
    asked = re.findall(r"(?<!max-)\bwidth: ([\d.]+)(px|rem)|flex-basis: ([\d.]+)(px|rem)", style)
    found = [(float(a or c), b or d) for a, b, c, d in asked]
    return [f"{size:g}{unit}" for size, unit in found if size * (16 if unit == "rem" else 1) > 366]


# --- light and dark


def colours_by_page(style: str) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the variables that a style sets on a light page and on a dark one, and the style without them."""
    sets = re.findall(r":root \{([^}]*)\}", style)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", entry)) for entry in sets)
    assert style.index(sets[1]) > style.index("@media (prefers-color-scheme: dark)") > style.index(sets[0])
    return light, dark, re.sub(r":root \{[^}]*\}", "", style)


def apart(one: str, other: str) -> float:
    """Return the contrast of two colours of a style."""
    from matplotlib.colors import to_rgb

    return contrast(to_rgb(one), to_rgb(other))


def test_the_contrast_is_that_of_the_standard() -> None:
    assert apart("#000000", "#ffffff") == pytest.approx(21)
    assert apart("#767676", "#fff") == pytest.approx(4.54, abs=0.01)  # the lightest grey that passes, by WCAG


def test_the_page_is_legible_light_and_dark(files: dict[str, bytes]) -> None:
    light, dark, rest = colours_by_page(parsed(files["index.html"].decode()).style)
    assert light.keys() == dark.keys()
    assert re.findall(r"#[0-9a-f]{3,8}\b", rest) == []  # all colours follow the page
    assert set(re.findall(r"var\(--([a-z]+)\)", rest)) == {*light, "figures"}  # that is a number of columns
    for page in (light, dark):
        for ink in ("ink", "soft", "good", "bad", "warn"):
            assert apart(page[ink], page["paper"]) >= 4.5
            assert apart(page[ink], page["box"]) >= 4.5 or ink == "soft"
    assert apart(light["paper"], dark["paper"]) > 15


def strays(svg: str) -> set[str]:
    """Return the colours of a drawing that do not follow the page, but for those on the cells of a grid."""
    _, _, rest = colours_by_page(svg)
    found = set(re.findall(r"(?:fill|stroke|stop-color|color): ?(#[0-9a-fA-F]{3,6}|[a-z]+)\b", rest))
    return found - {"none", "var", *drawing.IN_CELLS, drawing.BORDER}


def test_the_plots_follow_the_page_and_are_legible_light_and_dark(files: dict[str, bytes]) -> None:
    images = [values for tag, values in parsed(files["index.html"].decode()).tags if tag == "img"]
    for values in images:
        svg = base64.b64decode(values["src"].partition(",")[2]).decode()
        light, dark, rest = colours_by_page(svg)
        assert strays(svg) == set()
        assert strays(svg.replace("stroke: var(--ink)", "stroke: #222222")) == {"#222222"}
        assert set(re.findall(r"var\(--([a-z]+)\)", rest)) <= light.keys() == dark.keys()
        for page in (light, dark):
            assert apart(page["ink"], page["paper"]) >= 7
            assert all(apart(page[line], page["paper"]) >= 3 for line in ("target", "baseline", "quiet"))
    page = parsed(files["index.html"].decode())
    assert colours_by_page(page.style)[1]["paper"] == dark["paper"]


@pytest.mark.usefixtures("sketched")
def test_long_names_can_be_broken_and_stay_in_their_boxes() -> None:
    long = "model-" * 200
    result = replace(
        sample.full(), target=long, notes=(long,), checks=(replace(sample.CHECKS[0], name=long, detail=long),)
    )
    page = parsed(sample.render(result, long)["index.html"].decode())
    assert [inside for text, inside in page.placed if long in text and "td" in inside and "div" not in inside] == []
    assert re.search(r"\.flowing td:last-child \{ white-space: normal", page.style)


# --- the plots


def test_the_plots_on_the_page_are_drawings_with_a_text(files: dict[str, bytes]) -> None:
    images = [values for tag, values in parsed(files["index.html"].decode()).tags if tag == "img"]
    for values in images:
        root = xml.etree.ElementTree.fromstring(base64.b64decode(values["src"].partition(",")[2]))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 10
        assert values["alt"]
        width, height = (float(root.attrib[name].removesuffix("pt")) for name in ("width", "height"))
        assert int(values["width"]) / int(values["height"]) == pytest.approx(width / height, rel=0.01)


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Return width, height and the filtered bytes of a PNG with four channels of eight bits."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, packed = 8, b""
    while place < len(data):
        size, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
            assert (depth, colours) == (8, 6)
        packed += body if kind == b"IDAT" else b""
        place += 12 + size
    return width, height, zlib.decompress(packed)


@pytest.mark.parametrize("name", sample.SAMPLES)
def test_the_png_files_are_whole_and_not_empty(name: str) -> None:
    plots = {file: data for file, data in rendered(name).items() if file.endswith(".png")}
    assert plots
    for data in plots.values():
        width, height, raw = pixels(data)
        assert width == pytest.approx(5.2 * 160, abs=2)
        assert 300 < height < 1200
        assert len(raw) == height * (1 + 4 * width)
        assert len(set(raw)) > 50


def test_the_same_result_makes_the_same_bytes(files: dict[str, bytes]) -> None:
    assert sample.render(sample.full(), COMMAND) == files


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    code = (
        "import sys, matplotlib, sample; from sample import render\n"
        "before = matplotlib.rcParams.copy(); render(sample.full()); assert matplotlib.rcParams.copy() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, timeout=60)


# --- the folder


def test_the_folder_holds_the_page_and_the_plots(tmp_path: Path) -> None:
    paths = write_page(verify_page(sample.minimal()), tmp_path / "report")
    assert paths == [tmp_path / "report" / "index.html", tmp_path / "report" / "loss.png"]
    assert {path.name: path.read_bytes() for path in paths} == sample.render(sample.minimal())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


def test_an_empty_folder_is_filled_and_a_report_replaced_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    write_page(verify_page(sample.full()), folder)
    assert (folder / "tax.png").is_file()
    with pytest.raises(OutputError, match="is not empty") as refusal:
        write_page(verify_page(sample.minimal()), folder)
    assert refusal.value.try_ == "a new folder for --report"
    write_page(verify_page(sample.minimal()), folder, force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "loss.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


def foreign(folder: Path, kind: str) -> None:
    """Put at `folder` something that no report wrote, or that no longer is one alone."""
    if kind == "file":
        folder.write_text("mine")
    elif kind == "link":
        write_page(verify_page(sample.minimal()), folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
    elif kind == "link to nothing":
        folder.symlink_to("nowhere")
    elif kind == "report with a note":
        write_page(verify_page(sample.minimal()), folder)
        (folder / "note.txt").write_text("mine")
    elif kind == "other page":
        folder.mkdir()
        (folder / "index.html").write_text("<!DOCTYPE html><title>mine</title>")
    else:
        folder.mkdir()
        (folder / "model.safetensors").write_text("mine")


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing", "report with a note", "other page", "checkpoint"])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_report_is_never_replaced(tmp_path: Path, kind: str, force: bool) -> None:
    folder = tmp_path / "report"
    foreign(folder, kind)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(OutputError, match="exists already"):
        check_folder(folder, force=force)
    with pytest.raises(OutputError, match="exists already"):
        write_page(verify_page(sample.minimal()), folder, force=force)
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    assert folder.is_symlink() == kind.startswith("link")


def test_a_place_that_cannot_be_is_refused_with_a_step(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist") as refusal:
        check_folder(tmp_path / "a" / "b")
    assert refusal.value.try_ == f"mkdir -p {tmp_path / 'a'}"
    with pytest.raises(OutputError, match="does not end in a file name") as refusal:
        check_folder(Path("."))
    assert refusal.value.try_ == "pass another --report"
    check_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "report"
    folder.mkdir()

    def denied(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(OutputError, match="permission denied") as refusal:
        write_page(verify_page(sample.minimal()), folder)
    assert (refusal.value.where, refusal.value.try_) == (str(folder), "pass another --report")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.usefixtures("sketched")
def test_a_measurement_that_found_nothing_says_why() -> None:
    full = sample.full()
    reason = "the texts are too short"
    result = replace(
        full, lengths=full.lengths[-1:], divergence=replace(full.divergence, by_position=(), beyond=None, note=reason),
        measures={
            "position": replace(sample.position(), offsets=(), note=reason),
            "far": replace(sample.far(), distances=(), note=reason),
            "retrieval": (replace(sample.retrieval(), cells=(), baseline=(), note=reason),),
        },
    )  # fmt: skip
    assert "".join(parsed(sample.render(result)["index.html"].decode()).text).count(f"Note: {reason}") == 4
    assert verify_text(result).count(reason) == 4


@pytest.mark.parametrize("there", ["nothing", "empty", "report"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "report"
    if there == "report":
        write_page(verify_page(sample.minimal()), folder)
    elif there == "empty":
        folder.mkdir()
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.suffix == ".png":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="no space left") as refusal:
        write_page(verify_page(sample.minimal()), folder, force=True)
    assert refusal.value.try_ == "pass a --report on a disk with more space"
    assert {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_package_that_is_not_installed_is_named_beforehand(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=f"needs {package}, which is not installed") as missing:
        check_folder(tmp_path / "report")
    assert missing.value.try_ == install_line("report")


def test_the_lines_that_serve_the_target_are_kept() -> None:
    lines = ["vllm: vllm serve out --max-model-len 8", "sglang: does not load it: <why>"]
    text = "".join(parsed(sample.render(sample.full(), COMMAND, lines)["index.html"].decode()).text)
    assert all(text.count(line) == 1 for line in lines)
    assert "served by" not in "".join(parsed(rendered("full")["index.html"].decode()).text)
