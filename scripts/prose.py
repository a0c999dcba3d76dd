#!/usr/bin/env python3
"""Measure how plain the English of a Python project is.

Run it from the root of the repository: `scripts/prose.py ropetool`. It counts phrases that make English hard to read, per 1000 words:

  docs, tables          README.md and docs/**/*.md without code blocks: running text and headings; table rows
  help, messages        help= texts and docstrings of click commands; other strings of four words or more
  docstrings, commits   docstrings (comments are not read); the last 200 commit subjects, only with --commits

Inline code, links and {placeholders} count as one word each and never match. If two patterns overlap, only the first hit
counts. A hit is a hint, not an error: judge a text by its rate, not by a single hit.

The patterns were calibrated on sqlite-utils, llm, mergekit, uv, llama.cpp and safetensors. Each is at least four times as
frequent in early texts of ropetool as in the median of those six. REFERENCE is the rate of the six together.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REFERENCE = {"docs": 1.2, "tables": 0.2, "help": 0.4, "messages": 0.4, "docstrings": 1.4, "commits": 0.2}
LONG_SENTENCE, LONG_LINE, FEWEST_WORDS, HELP = 30, 120, 4, {"help", "short_help", "epilog"}
# A sentence ends at a full stop before a capital, a blank line, a list item, a heading or a field such as "name: ".
END = re.compile(r"""[.!?]["')\]*]*\s+(?=["'`(\[*{]*[A-Z0-9`{])|\n(?=\s*(?:\n|(?:[-*+]|\d+[.)]|#+|:?\w[\w, ]*:)\s))""")
EXAMPLE, CODE = (
    re.compile(r"(?m)^ *(>>>|\.\.\. |\$ |\x08).*$"),
    re.compile(r"``[^`]+``|`[^`]+`|\{[^{}]*\}|https?://\S+|<[^<>]+>"),
)
MARKUP = re.compile(
    r"^([-*+>]|\d+[.)]|#+)\s+|(?<=\n)\s*>|\*+|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|!?\[(?=[^\]]*\]\()|\]\([^)]*\)"
)

# A reason, then its patterns: name, regex between word boundaries, what to write instead.
WORDS = {
    "BE": "(is|are|was|were|be|been|being)",
    "VERBS": "(claim|cost|find|gate|get|give|hold|judge|know|leave|make|mean|"
    "name|read|say|show|state|take|tell|write)s?",
    "PREP": "(of|for|by|with|from|as|to|on|against|in|at|beside|about|into|under)",
}
TABLE = r"""
A question word or a pronoun stands for a thing that has a name.
  what-clause   what (it|they|is|are|has|was|were|each|every|no|that|those|one|both|a|an|the) => name it: "its size"
  what-object   (PREP|BE|VERBS|and|than|but|or|does|do|serves?) what => name it
  and-what      (?<=, )and (what|which|no|nothing|none|whether|where|how) => start a new sentence
  that-of       (that|those) of => repeat the noun: "the source's length"
  those-that    those (that|which|who|with|without)|that which|ones? (that|which|without) => repeat the noun
  elliptic-s    (?!(it|that|there|here|let|what|who|he|she)')\w+'s(?=[.,;:)]|$| (and|or|than|BE|PREP)\b) => repeat the noun
  whoever       nobody|somebody|anybody|everybody|who(m)?ever|whatever|whichever|wherever => name who; any; regardless of
  of-which      (of|by|from|with|against|beside|beyond|within|after|before|under) (which|whose|whom) => two sentences
A rare word or order where the field has a common one.
  only-alone    (?<!let )(?<!left )(?<!leave )(?<!leaves )(?<!stand )alone => only
  where-if      (?<!and )where (there|it|they|no|none|nothing|nobody|that|one|a|an|any|each|all|both|this|only|neither) => if, when
  beside        beside => next to, besides, with
  so-many       so (many|much|few|little|long)(?! as)|all (that|it|there|they) => the number; this many; everything
  as-it-is      as (it|they) (BE|came|comes?|stands?|stood) => unchanged, as is
  its-own       (by|of|in) (itself|themselves)|of (its|their|our|your) own|of (ours|theirs) => separate, separately; drop it
  how-far       how far => the distance, difference, limit
  surely-anew   surely|anew|afresh|now and then|once more => significantly; again; sometimes
  another       (has|have|BE|PREP|VERBS|wants?) another|(\w+ed|VERBS|do|does|them) otherwise|otherwise than => a different; differently
  of-front      (^|(?<=[;:] ))of (a|an|the|each|every|all|such|those|two|its|one|any|what) => for, in; subject first
A negated noun where English negates the verb.
  is-no         (?<!there )BE no(?! longer| more| need)|BE none => is not a; has no
  reads-no      (VERBS|ha[sd]|have) none|(?!gives? |gets? |makes? |takes? )VERBS no(?! longer| more) => does not ... any
  says-nothing  (VERBS|ha[sd]|have) nothing|nothing (of|that|beyond|beside|can|could|has|follows|VERBS|turns?) => does not ...
A vague verb: things say, tell, stand, go and ask.
  says          (says?|said|saying)(?! so\b| that\b) => contains, sets, reports, explains
  tells         told|tells?(?! (you|us)\b) => reports, shows, distinguishes
  stated        (?<!hidden )(stated|states|stating) => sets, declares; configured
  asks-for      (asks?|asked|asking) (for|of) => needs, requires; requested
  stands        (stands?|stood|standing)(?! (for|alone|out)\b)|(lies?|lay|lying) (PREP|within|between|there) => is, is stored
  held-against  (held|holds?|holding)(?=[^.;]{0,40} (against|beside|apart)\b) => compared with
  holds         (can|cannot|could|not) hold|(holds?|held) (no|none|what|all|it|them|for|that|as) => has, can store
  takes         (takes?|taken|took) (no|what|all|it|them|as|that|one|those|its|for|back) => uses, accepts, reads
  goes-comes    (go|goes|went|going) (by|with)|(comes?|came) (to|of|after|before|first) => uses; results in; precedes
  made-of       (makes?|made|making) of|made (again|anew|from|by) => built from, created from
  is-meant      BE (meant|wanted)(?! (to|for|as)\b)|(a|the) wanted|BE to be => requested, target; must be
A private word that a reader must learn first.
  private-word  yardsticks?|dress|laborator(y|ies)|far text|companions?|tax|kinds|mend(s|ed|ing)? => the field's word
"""


class Pattern(NamedTuple):
    """A phrase that reads badly, why, and what to write instead."""

    reason: str
    name: str
    regex: re.Pattern[str]
    better: str


def _patterns() -> Iterator[Pattern]:
    reason = ""
    for row in TABLE.strip().splitlines():
        if row.startswith(" "):
            name, phrase, instead = re.split(r"(?<=\w) {2,}| => ", row.strip())
            phrase = re.sub("|".join(WORDS), lambda match: WORDS[match[0]], phrase)
            yield Pattern(reason, name, re.compile(rf"(?<!\w)(?:{phrase})(?!\w)", re.IGNORECASE), instead)
        else:
            reason = row


PATTERNS = list(_patterns())


class Sentence:
    """A sentence as it is written, its place, its number of words, and its hits: patterns and the words that they match."""

    def __init__(self, kind: str, path: str, line: int, text: str) -> None:
        self.kind, self.path, self.line, self.text = kind, path, line, text
        plain = " ".join(MARKUP.sub("", CODE.sub("X", text)).split())
        self.words = sum(any(c.isalpha() for c in piece) for piece in plain.split())
        self.hits, end = list[tuple[Pattern, str]](), 0
        matches = ((match, pattern) for pattern in PATTERNS for match in pattern.regex.finditer(plain))
        for match, pattern in sorted(matches, key=lambda pair: pair[0].span()):
            if match.start() >= end:
                self.hits.append((pattern, match[0]))
                end = match.end()


def git(*arguments: str) -> list[str]:
    """Return the lines that a git command prints."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string or an f-string, with {} for each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) or "{}" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


class Prose:
    """The sentences of a repository. With `base`, only those with a line that the working tree adds to that commit."""

    def __init__(self, package: Path, generated: bool = True, commits: bool = False, base: str | None = None) -> None:
        self.found, self.widths, self.generated = list[Sentence](), list[int](), generated
        self.added: dict[str, set[int]] | None = {} if base else None
        for line in git("diff", "-U0", "--no-color", "--no-ext-diff", "--dst-prefix=b/", base) if base else ():
            if line.startswith("+++ "):
                lines = self.added.setdefault(line.removeprefix("+++ b/"), set())  # type: ignore[union-attr]
            elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
                lines.update(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
        for page in filter(Path.is_file, [Path("README.md"), *sorted(Path("docs").rglob("*.md"))]):
            self.page(page)
        for module in sorted(package.rglob("*.py")):
            self.strings(str(module), ast.parse(module.read_text("utf-8")))
        if commits:
            log = git("log", "-n200", "--no-merges", "--format=%h %s", f"{base}..HEAD" if base else "HEAD")
            self.found += [Sentence("commits", line.split()[0], 0, line.partition(" ")[2]) for line in log]

    def is_wanted(self, path: str, first: int, last: int) -> bool:
        """Return whether one of these lines is to be read."""
        return self.added is None or not self.added.get(path, set()).isdisjoint(range(first, last + 1))

    def add(self, kind: str, path: str, text: str, first: int, last: int | None = None) -> None:
        """Split a text that begins in line `first`. With `last`, its sentences count as one block of lines."""
        start = 0
        for end in [*(match.end() for match in END.finditer(text)), len(text)]:
            piece = text[start:end].strip()
            line = first if last else first + text.count("\n", 0, text.find(piece, start))
            if piece and self.is_wanted(path, line, last or line + piece.count("\n")):
                self.found.append(Sentence(kind, path, line, piece))
            start = end

    def page(self, path: Path) -> None:
        """Add a page of markdown, each cell of a table as a sentence."""
        text = path.read_text("utf-8")
        blocks = [r"(?ms)^ *([-*] +)?(```|~~~).*?^ *\2`*$", r"(?m)^ *(<!--|</?\w|!!!|\[[^\]]+\]: ).*$"]
        for block in blocks if self.generated else [blocks[0], r"(?ms)^<!-- ([\w-]+) -->$.*?^<!-- /\1 -->$", blocks[1]]:
            text = re.sub(block, lambda match: "\n" * match[0].count("\n"), text)
        for number, row in enumerate(text.splitlines(), 1):
            if row.lstrip().startswith("|"):
                for cell in re.split(r"(?<!\\)\|", row):
                    self.add("tables", str(path), cell, number)
            elif row and self.is_wanted(str(path), number, number):
                self.widths.append(len(row))
        self.add("docs", str(path), re.sub(r"(?m)^ *\|.*$", "", text), 1)

    def strings(self, path: str, node: ast.AST, kind: str = "messages") -> None:
        """Add all strings below a node: docstrings, help texts and messages."""
        text, below = text_of(node), list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            if re.search(r"\.(command|group)\(", " ".join(map(ast.unparse, node.decorator_list))):
                below.remove(node.body[0])
                self.strings(path, node.body[0].value, "help")  # type: ignore[attr-defined]
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            kind = "help"
        elif isinstance(node, ast.Expr) and text_of(node.value):
            kind = "docstrings"
        elif text and isinstance(node, ast.expr):
            if kind != "messages" or len(re.findall(r"(?<!\S)\S*[a-zA-Z]{2}\S*", text)) >= FEWEST_WORDS:
                self.add(kind, path, EXAMPLE.sub("", text), node.lineno, node.end_lineno)
            below, kind = [part for part in below if text_of(part) is None], "messages"
        for part in below:
            self.strings(path, part, kind)


def rate(found: list[Sentence]) -> tuple[float, int, int]:
    """Return hits per 1000 words, hits and words."""
    hits, words = sum(len(s.hits) for s in found), sum(s.words for s in found)
    return 1000 * hits / max(1, words), hits, words


def report(prose: Prose) -> None:
    """Print the tables by kind and by pattern."""
    print(f"kind        per 1000 reference    hits   words  words/sentence  over {LONG_SENTENCE} words")
    for kind in [*REFERENCE, "all"]:
        if some := [s for s in prose.found if kind in (s.kind, "all")]:
            (per_1000, hits, words), long = rate(some), sum(s.words > LONG_SENTENCE for s in some) / len(some)
            print(
                f"{kind:12}{per_1000:8.1f} {REFERENCE.get(kind, ''):>9} {hits:7} {words:7} {words / len(some):15.1f} {long:14.1%}"
            )
    wide = sum(width > LONG_LINE for width in prose.widths) / max(1, len(prose.widths))
    print(
        f"lines of pages over {LONG_LINE} characters: {wide:.1%}\n\npattern       per 1000  hits  write instead (where)"
    )
    counts, reason = Counter((p.name, s.kind) for s in prose.found for p, _ in s.hits), ""
    for pattern in PATTERNS:
        if pattern.reason != reason:
            print(reason := pattern.reason)
        row = {kind: counts[pattern.name, kind] for kind in REFERENCE if counts[pattern.name, kind]}
        total, where = sum(row.values()), ", ".join(f"{kind} {n}" for kind, n in row.items())
        print(
            f"  {pattern.name:12} {1000 * total / max(1, rate(prose.found)[2]):7.2f} {total:5}  {pattern.better} ({where})"
        )


def main() -> int:
    """Measure the repository in the working directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the package directory")
    parser.add_argument("--no-generated", action="store_true", help="skip blocks between <!-- x --> and <!-- /x -->")
    parser.add_argument("--commits", action="store_true", help="count commit subjects too")
    parser.add_argument(
        "--changed", metavar="BASE", help="only lines that `git diff BASE` adds, and strings with such a line"
    )
    parser.add_argument("--worst", type=int, metavar="N", help="print the N sentences with most hits")
    parser.add_argument("--sample", type=int, metavar="N", help="print N random hits, to check the precision by hand")
    parser.add_argument("--files", action="store_true", help="print one line per file, highest rate first")
    parser.add_argument("--quiet", action="store_true", help="print only the kinds above the limit")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="exit 1 above this rate in a kind (one hit is free)"
    )
    parser.add_argument("--kinds", default=",".join(REFERENCE), help="the kinds that --limit judges, between commas")
    options = parser.parse_args()
    prose = Prose(options.package, not options.no_generated, options.commits, options.changed)
    hits = [(s, f"{p.name}: {words}") for s in prose.found for p, words in s.hits]
    shown = random.Random(0).sample(hits, min(options.sample or 0, len(hits)))
    for sentence in sorted(prose.found, key=lambda s: -len(s.hits))[: options.worst or 0]:
        shown.append((sentence, ", ".join(p.name for p, _ in sentence.hits)))
    for sentence, names in shown:
        print(f"{sentence.path}:{sentence.line} [{names}]\n    {' '.join(sentence.text.split())}")
    if options.files:
        rates = {
            path: rate([s for s in prose.found if s.path == path]) for path in {s.path for s in prose.found if s.line}
        }
        for path, (per_1000, count, words) in sorted(rates.items(), key=lambda item: (-item[1][0], item[0])):
            print(f"{per_1000:6.1f} per 1000 {count:5} hits {words:6} words  {path}")
    elif not shown and not options.quiet:
        report(prose)
    rates = {kind: rate([s for s in prose.found if s.kind == kind]) for kind in REFERENCE}
    judged = {kind: rates[kind] for kind in options.kinds.split(",")}
    over = [kind for kind, (per_1000, count, _) in judged.items() if per_1000 > options.limit and count > 1]
    if over:
        print(f"more than {options.limit:g} hits per 1000 words: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
