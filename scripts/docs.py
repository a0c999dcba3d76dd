#!/usr/bin/env python3
"""Write the parts of the documentation that follow from code and data.

docs/cli.md is written whole; elsewhere what stands between `<!-- NAME -->` and
`<!-- /NAME -->`.
With --examples the commands of docs/install.md are run, about a minute, and what they print is put behind them.

    scripts/docs.py               write them
    scripts/docs.py --examples    run the worked example too
    scripts/docs.py --check       write nothing; exit 1 if a file differs from what would be written
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(readme.parent) for readme in sorted(ROOT.glob("scripts/*/README.md"))]

import base_conversion
import cache_types_page
import click
import closed_forms
import conformance_kit.page as conformance_page
import converted_page
import defects_page
import family_page
import identified_page
import real_models_page
import seeds
import tune_demo_page
import verdicts_page
import yardsticks_page
from engine_grid import judging, recorded

from ropetool import families, runtimes
from ropetool.cli import group
from ropetool.cli.options import ALL_SHOWN
from ropetool.doctor import rules as doctor_rules
from ropetool.families import records
from ropetool.families.wrappers import UNREAD, WRAPPERS
from ropetool.rope import methods
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import folding
from ropetool.runtimes.llama_cpp.architectures import Architecture, Sliding
from ropetool.verification import floors

WIDTH = 100
PLAIN = "seed_oss"  # the family whose file docs/families.md shows
TUTORIAL = "docs/install.md"
NOTICE = "<!-- Written by scripts/docs.py; do not edit. -->\n"


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each file with the whole text that it should have."""
    yield ROOT / "docs/cli.md", cli_reference()
    plain = (ROOT / f"ropetool/families/{PLAIN}.json").read_text(encoding="utf-8")
    blocks = {
        "README.md": {"reach": reach()},
        "docs/families.md": {
            "family": f"```json\n{plain}```", "refused": _reach(), "families": _table(family_page.HEAD, family_page.rows()),
        },
        "docs/choosing.md": {
            "methods": method_table(), "parameters": parameter_table(), "noise": noise_table(),
            "example": tune_demo_page.example(), "demo": _table(tune_demo_page.HEAD, tune_demo_page.table()),
            "base-conversion": base_conversion.section(),
        },
        "docs/runtimes.md": {
            "runtimes": runtime_table(), "architecture-reach": architecture_reach(), "architectures": architecture_table(),
            "sliding": sliding_table(), "folds": fold_table(), "engines": engine_grids(),
        },
        "docs/judging.md": {**verify_tables(), "default-verdicts": verdicts_page.table()},
        "docs/export.md": {"held": _table(family_page.HELD, family_page.held()), "converted": converted_page.table()},
        "scripts/conformance_kit/conformance.md": conformance_page.tables(),
        "docs/inspecting.md": {"identified": identified_page.table(), "rules": rule_table()},
        "docs/measurements.md": {
            **yardsticks_page.parts(), "real-models": real_models_page.section(), "seeds": seeds.section(),
            "closed-forms": closed_forms.section(),
        },
        "docs/architecture.md": {"tree": tree(), "layers": layer_table()},
    }  # fmt: skip
    for name, parts in blocks.items():
        yield ROOT / name, filled(name, parts)


def noise_table() -> str:
    """Return how often `tune` claims a gain of pure noise, as scripts/tune/tune_noise.py counted it."""
    found = json.loads((ROOT / "tests/choosing/tune_noise.json").read_text(encoding="utf-8"))["designs"]
    rows = [
        (
            name,
            f"{entry['seeds']:,}",
            str(entry["claims"]),
            f"{100 * entry['share']:.1f} %",
            f"{100 * entry['upper']:.1f} %",
        )
        for name, entry in found.items()
    ]
    return _table(("unseen text", "runs", "gains claimed", "share", "95 % upper bound"), rows)


def verify_tables() -> dict[str, str]:
    """Return the tables of docs/judging.md, by their markers."""
    return {"kl-floors": floor_table(), "cache-types": cache_types_page.table(), **defects_page.tables()}


def filled(name: str, parts: dict[str, str]) -> str:
    """Return the file's text with each part between its markers."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for part, content in parts.items():
        pattern = re.compile(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, content=content: f"{found[1]}\n{content}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"{name}: {count} places between <!-- {part} --> and <!-- /{part} -->; there must be one")
    return text


def examples() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each command in the tutorial that shows its output."""
    text = (ROOT / TUTORIAL).read_text(encoding="utf-8")
    pattern = r"^```console\n\$ ropetool (.+)\n```\n\n<!-- output-(\w+) -->$"
    yield from ((name, shlex.split(line)) for line, name in re.findall(pattern, text, re.MULTILINE))


def example_output(arguments: Sequence[str], folder: Path) -> str:
    """Return what the command prints in a folder that has the demo checkpoint at its usual place."""
    model = folder / "ropetool/demo/model"
    if not model.exists():
        shutil.copytree(ROOT / "ropetool/demo/model", model)
    done = subprocess.run(
        [sys.executable, "-m", "ropetool", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    return re.sub(r"^Note: about .* tokens\n", "", done.stdout, flags=re.MULTILINE)  # how long it takes here


def tutorial_with_examples() -> str:
    """Return the tutorial with the output of its commands, which are run one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: example_output(line, Path(folder)) for name, line in examples()}
    return filled(TUTORIAL, {f"output-{name}": f"```text\n{text}```" for name, text in outputs.items()})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# --- commands


def commands() -> Iterator[tuple[str, click.Context]]:
    """Yield the full name of every command and a context that it can be asked in; the group comes first."""
    top = click.Context(group, info_name="ropetool", terminal_width=WIDTH, **group.context_settings)
    yield "ropetool", top
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top, terminal_width=WIDTH)
        yield f"ropetool {name}", context
        for part, inner in command.commands.items() if isinstance(command, click.Group) else ():
            yield f"ropetool {name} {part}", click.Context(inner, info_name=part, parent=context, terminal_width=WIDTH)


def cli_reference() -> str:
    """Return the help of every command."""
    parts = [f"# Command line\n\n{NOTICE}", _EXIT_CODES]
    for name, context in commands():
        context.meta[ALL_SHOWN] = True
        parts.append(f"\n## {name}\n\n```text\n{context.command.get_help(context)}\n```\n")
    return "".join(parts)


_EXIT_CODES = """
The result goes to stdout, progress, notes and errors go to stderr. With `--json` the result is JSON
([schemas](api.md#json)), and so is a failure. `ROPETOOL_TRACEBACK=1` shows where an error came from.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | refused or failed, or a verification that could not run in full (`partial`) |
| 2 | usage |
| 3 | a verification ran and a length does not hold, `diff` found a difference in meaning, or `doctor` an error |
| 70 | a bug in ropetool: please report it, with the output |
| 130, 143, 129 | ended by Ctrl-C, SIGTERM or SIGHUP: what was half done is removed |

Lengths are numbers of tokens, or 32k, 128k, 1M (k is 1024); a factor is 4 or 4x. On a terminal, work that takes more than a
second shows how far it is.

## Completion in the shell

Commands, options, methods, runtimes, families and bakes are completed after one of these lines in the start file of the shell:

```text
eval "$(_ROPETOOL_COMPLETE=bash_source ropetool)"       # ~/.bashrc
eval "$(_ROPETOOL_COMPLETE=zsh_source ropetool)"        # ~/.zshrc
_ROPETOOL_COMPLETE=fish_source ropetool | source        # ~/.config/fish/config.fish
```
"""


# --- families, methods, runtimes


def _left() -> dict[str, str]:
    """Return the types of transformers that are neither served nor settled, with the reason."""
    reasons = {name: records.reason(name) for name in _types()[0] | _types()[1] if families.find(name) is None}
    settled = ("sinusoids", "no rotary positions")
    return {
        name: reason for name, reason in sorted(reasons.items())
        if not _hands_over(name) and name not in {*records.SETTLED, *records.unrotated()} and not any(w in reason for w in settled)
    }  # fmt: skip


@cache
def _types() -> tuple[frozenset[str], frozenset[str]]:
    """Return the causal types of transformers that rotate, and those that read more than text and are not causal."""
    from transformers.models.auto import modeling_auto as auto

    causal = frozenset(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    more = {*auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    return causal & records.names(), frozenset(more) - causal


def _hands_over(name: str) -> bool:
    wrapper = families.wrapper_of(name)
    return wrapper is not None and (not wrapper.default or bool(families.find(wrapper.default)) or name in WRAPPERS)


def reach() -> str:
    """Return how many types and architectures are extended, and what becomes of the others, for README."""
    causal, more = _types()
    every, left = causal | more, _left()
    own = {name: found for name in every if (found := families.find(name))}
    still = {name for name, found in own.items() if found.rotates == "none"}
    extended = {name for name in every if name in own or _hands_over(name)} - still
    described = {arch for arch in archs.names() if arch not in archs.WITHOUT_ROTATION}
    sentences = (
        f"ropetool can extend {len(extended)} of the {len(every)} model types of transformers {records.VERSION} ({len(causal)} causal "
        f"types that rotate, {len(more)} multimodal). For {len(still)}, `--method length` only raises the configured context length. "
        f"{len(every - extended - still - left.keys())} do not have a rotary table to extend, and {len(left)} are unknown. ropetool "
        f"knows {len(described)} of llama.cpp's {len(described) + len(_drafts())} architectures that rotate."
    )
    return textwrap.fill(sentences, 118) + "\n"


def _reach() -> str:
    """Return how many of transformers' rotary types are extended, and the names of those that are refused."""
    refused = ", ".join(f"`{name}`" for name in sorted({*_left(), *UNREAD}))
    return (
        f"{reach()}\n{len(records.unrotated())} types lack rotary positions, and ropetool refuses them. It also refuses "
        f"these types. `ropetool families TYPE` prints the reason.\n\n{refused}\n"
    )


def method_table() -> str:
    """Return a line for each method."""
    known = [methods.get(name) for name in methods.names()]
    rows = [
        [f"`{m.name}`", ", ".join(f"`{a}`" for a in m.aliases), m.summary, m.auto_attention_factor, m.source]
        for m in known
    ]
    return _table(["method", "aliases", "what it does", "attention factor by default", "source"], rows)


def parameter_table() -> str:
    """Return a line for each parameter of each method."""
    rows = [
        [f"`{name}`", f"`{field.name}`", _shown(field.default), field.metadata["help"]]
        for name in methods.names()
        for field in dataclasses.fields(methods.get(name).params_type)
    ]
    return _table(["method", "parameter", "default", "meaning"], rows)


def _shown(default: object) -> str:
    if default in (None, ()):
        return "-"
    return f"{default:g}" if isinstance(default, float) else f"{default}".lower()


def runtime_table() -> str:
    """Return a line for each runtime."""
    known = [runtimes.get(name) for name in runtimes.names()]
    rows = [[f"`{r.name}`", ", ".join(r.formats), r.versions, r.summary] for r in known]
    return _table(["runtime", "reads", "checked with", "how"], rows)


def floor_table() -> str:
    """Return a line for each type of file: what was measured of both models, and what follows."""
    measured = floors.table()["floors"]
    rows = []
    for name, entry in measured.items():
        allowed = floors.limit([name], 1)
        assert allowed is not None
        text, rare = allowed.text, allowed.rare
        figures = [
            *(entry[model]["text"][0] for model in ("demo", "second")),
            text.mean,
            text.p99,
            text.window,
            rare.mean,
        ]
        rows.append([name, *(f"{figure:.2g}" for figure in figures)])
    head = ["type", "demo, mean", "second, mean", "limit: mean", "p99", "window", "rare tokens"]
    return _table(head, rows)


def engine_grids() -> str:
    """Return what came of whole models in the engines that were run, a table an engine."""
    parts = []
    for path in sorted(recorded.FOLDER.glob("engines_*.json")):
        grid = recorded.Recorded(path.stem.removeprefix("engines_").replace("_", "-"))
        rows = [[f"`{name}`", *_engine_cells(cells)] for name, cells in sorted(grid.families.items())]
        made = ", ".join(f"{name} {version}" for name, version in grid.made_with.items() if name != "reference")
        head = f"{made}; the reference is {grid.made_with['reference']}.\n\n"
        columns = ["family", "cells that agree", "stops as decoded", "largest difference", "1 % on the frequencies"]
        parts.append(head + _table(columns, rows))
    return "\n\n".join(parts)


def _engine_cells(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Return what came of a family's cells."""
    run = [cell for cell in cells.values() if cell["verdict"] == judging.EXPLAINED]
    stopped = sorted(name for name, cell in cells.items() if cell["verdict"] == judging.REFUSED)
    largest, least = max(cell["difference"] for cell in run), min(cell["seen"] for cell in run)
    return [str(len(run)), ", ".join(stopped) or "-", f"{largest:.1e}", f"at least {least:.2g}"]


# --- the architectures of llama.cpp


def architecture_reach() -> str:
    """Return how many of the architectures that rotate are decoded and extended, and by what each was checked."""
    decoded = [archs.get(name) for name in archs.names() if archs.get(name).layout]
    drafts = _drafts()
    still = [
        arch for arch in decoded if arch.sliding is not None and arch.rotating != "all" and not arch.sliding.layer_count
    ]
    partly = [arch.name for arch in decoded if arch.fixed_base or arch in still]
    return (
        f"Of {len(decoded) + len(drafts)} architectures that rotate, {len(decoded)} are decoded: {len(decoded) - len(partly)} "
        f"accept a different table, {len(partly)} only a longer context length ({', '.join(sorted(partly))}); exaone4 has both "
        f"types of files. Not decoded: {', '.join(drafts)}. `tests/oracle/test_running_architectures.py` runs a model of each of the "
        f"{len(decoded)} in the library and compares every rotation of its graph with the decoded table.\n"
    )


def _drafts() -> list[str]:
    """Return the architectures that rotate and are not decoded: clip and gptj are no text models that llama.cpp runs."""
    return sorted(archs.DRAFTS)


def architecture_table() -> str:
    """Return a line for each way to rotate, with the architectures that llama.cpp runs so."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in archs.names():
        arch = archs.get(name)
        alike.setdefault((_pairs(arch), _partial(arch), _vectors(arch), _own_keys(arch)), []).append(name)
    rows = [[", ".join(found), *how] for how, found in sorted(alike.items(), key=lambda item: item[1])]
    for reason in dict.fromkeys(archs.UNDESCRIBED.values()):
        those = sorted(name for name, why in archs.UNDESCRIBED.items() if why == reason)
        rows.append([", ".join(those), f"not decoded: llama.cpp {reason}", "", "", ""])
    return _table(["architecture", "pairs", "rotating channels", "divisors", "special keys"], rows)


def _pairs(arch: Architecture) -> str:
    if not arch.layout:
        return "does not rotate"
    if arch.name in archs.HALF_WITH_SECTIONS:
        return f"{arch.layout}; half with {_code(archs.DIMENSION_SECTIONS)}"
    if arch.fixed_base:
        return f"{arch.layout}, always with the base {arch.fixed_base:g}"
    if arch.layer_count:
        return f"{arch.layout} with {arch.layer_count} layers; does not rotate with any other number"
    return arch.layout


def _partial(arch: Architecture) -> str:
    if not arch.layout:
        return "-"
    if arch.decoupled:
        return "the decoupled ones (MLA)"
    if arch.name in archs.HALVED:
        return f"{_code(archs.DIMENSION_COUNT)}, half of it in full layers"
    return "all" if arch.whole_heads or arch.name in archs.OF_EMBEDDING else _code(archs.DIMENSION_COUNT)


def _vectors(arch: Architecture) -> str:
    """Say which frequency vectors are used; one that is loaded and not looked at is named so."""
    plain, longrope = (arch.loads(kind) for kind in ("none", "longrope"))
    if not plain and not longrope:
        return "-"
    if not arch.vectors:
        return "loaded, not used"
    where = "; only in full layers" if arch.name in archs.FREQS_ON_FULL_LAYERS else ""
    if plain == longrope:
        needed = ", required" * (arch.name in archs.FREQS_REQUIRED) + where
        return ("rope_freqs" if plain == (archs.ROPE_FREQS,) else "long and short") + needed
    return f"rope_freqs; with type longrope long and short{where}"


def _own_keys(arch: Architecture) -> str:
    """Return the keys beyond those of sliding layers, which have a table of their own."""
    sliding = {
        archs.SLIDING_WINDOW, archs.SLIDING_WINDOW_PATTERN, archs.DIMENSION_COUNT_SWA, archs.KEY_LENGTH_SWA,
        archs.FREQ_BASE_SWA, *archs.READ_BY_ALL,
    }  # fmt: skip
    found = [_code(key) for key in sorted(arch.keys - sliding)]
    if arch.norm_after:
        some = archs.NORM_UNLESS_EXPERTS.get(arch.name)
        but = f", but with {some} experts" if some else ""
        found.append(f"no attention factor: it normalises after the rotation{but}")
    if arch.name in archs.WITHOUT_FACTOR:
        found.append("no attention factor: its graph cancels YaRN's factor")
    return ", ".join(found) or "-"


def fold_table() -> str:
    """Return where the weights of each architecture carry a factor of the keys, or why none do, and what shows it."""
    described, alike = families.by_gguf_architecture(), dict[tuple[str, str], list[str]]()
    for name in (name for name in archs.names() if archs.get(name).layout):
        reason = folding.refused(name)
        if reason:
            checked = "the sources" if name in folding.BY_SOURCES else "the running graph"
            alike.setdefault((f"nothing: {reason}", checked), []).append(name)
            continue
        family = described.get(name)
        steps = family.bake if family is not None else folding.steps(archs.get(name))
        assert steps is not None
        gguf = {step: (family.gguf_name(step.tensor) if family is not None else step.tensor) for step in steps.k}
        last = steps.k[-1]
        where = f"`{gguf[last]}`"
        if last.when:
            where += f" if the file has it, else `{gguf[steps.k[0]]}`"
        if last.rows == "mla_rope_key":
            where += ", its rotating rows"
        if steps.indexer_k:
            where += " and `indexer.k_norm`"
        if steps.clip_key:
            where += f"; nothing with `{steps.clip_key}`, which clamps them"
        if name in archs.NORM_UNLESS_EXPERTS:
            where += f"; nothing without {archs.NORM_UNLESS_EXPERTS[name]} experts: {archs.get(name).limit}"
        alike.setdefault((where, "logits"), []).append(name)
    rows = [[", ".join(found), *how] for how, found in sorted(alike.items(), key=lambda item: item[1])]
    return _table(["architecture", "a factor of the keys goes into", "shown by"], rows)


def sliding_table() -> str:
    """Return a line for each architecture that has sliding layers, or rotates only some layers."""
    rows = []
    for name in archs.names():
        arch = archs.get(name)
        if arch.sliding is not None:
            rules = arch.sliding
            rows.append([name, _which_slide(rules), _base(rules), _scale(rules), ROTATING[arch.rotating]])
        elif arch.rotating != "all":
            rows.append([name, "none", "-", "-", ROTATING[arch.rotating]])
    return _table(["architecture", "which layers slide", "their base", "their scaling", "which layers rotate"], rows)


ROTATING = {
    "all": "all",
    "step": "all but the last of each 4",
    "sliding": "the sliding layers; all if no layer slides",
    "sliding step": "all but the first of each 4; all if no layer slides",
    "sliding or dense": "the sliding and the leading dense layers",
}


def _which_slide(rules: Sliding) -> str:
    if rules.uncompressed:
        which = f"layers with 0 in {_code(archs.COMPRESS_RATIOS)}"
    elif rules.pattern is None:
        which = "the layers that the file lists"
    elif rules.pattern == 0:
        which = "all"
    else:
        which = f"all but {'the first' if rules.dense_first else 'the last'} of each {rules.pattern}"
    window = f"; always {'chunks' if rules.chunked else 'a window'} of {rules.fixed} tokens" if rules.fixed else ""
    window += f"; default window {rules.default}" if rules.default and not rules.fixed else ""
    window += "; the window's key is required" if rules.required else ""
    return which + window + (f"; only with {rules.layer_count} layers" if rules.layer_count else "")


def _base(rules: Sliding) -> str:
    if rules.shares_base:
        return "the same base"
    if rules.uncompressed:
        return f"{_code(archs.FREQ_BASE)}; other layers: {_code(archs.COMPRESS_FREQ_BASE)}"
    key = _code(archs.FREQ_BASE_SWA)
    if rules.needs_base:
        return f"{key}, which is required"
    return f"{key}, else {'10000' if rules.own_base else 'the same base'}"


def _scale(rules: Sliding) -> str:
    if rules.plain:
        return "none, and no attention factor"
    return "the same" if rules.scaled else "no factor; YaRN's ramp and the attention factor"


def _code(name: str) -> str:
    return f"`{name}`"


def rule_table() -> str:
    """Return a line for each rule of `ropetool doctor`."""
    formats = {"hf": "directories", "gguf": "GGUF files"}
    rows = [
        [f"`{rule.name}`", rule.severity, " and ".join(formats[each] for each in rule.formats), rule.summary, rule.why]
        for rule in doctor_rules.RULES
    ]
    return _table(["rule", "severity", "of", "finds", "what happens"], rows)


# --- the layers and the tree

# What folders without a docstring hold.
SAID = {
    "docs": "what users and builders read; cli.md, families.md and parts of others are generated",
    "ropetool/demo": "the embedded checkpoint, a Llama of 3.5M parameters, and documents that its training did not see",
    "ropetool/texts": "six long free texts for verify, and where they and the catalogue come from",
    "scripts": "set-up, tests, checks and generated docs; measurements lie in folders, each with a README",
    "scripts/conformance_kit/shipped": "what the kit ships: the scorer and the README, which need no package",
    "scripts/conformance_kit/shipped/drivers": "a program for each engine, run by that engine's Python, that answers the kit",
    "tests": "tests of the package's own modules, and what they are made with",
    "tests/bad_input": "wrong files, keys, values and options: one sentence each, nothing written",
    "tests/baking": "bakes against the real programs, and the grid that scripts/bake_grid/grid.py measured",
    "tests/choosing": "candidates held against `verify` of their outputs, and the search on made-up losses, noise and tiny models",
    "tests/cli": "commands as they are typed",
    "tests/conformance": "the conformance kit: a part of it made and scored, and the recorded scores of engines",
    "tests/costs": "what a length costs, against torch's counters, transformers' caches and published figures",
    "tests/doctor": "one known error in each checkpoint, found by its rule and no other; repairs asked of the real programs",
    "tests/exporting": "exports against transformers, llama.cpp and the stock converter's parts",
    "tests/identify": "mistakes of engines planted by transformers behind a server, and named",
    "tests/importing": "imports against what was exported, the gguf package's decoder and llama.cpp",
    "tests/formats": "files, outputs and the hub",
    "tests/formats_gguf": "GGUF headers and copies against the gguf package",
    "tests/golden": "tables by other implementations than ours",
    "tests/lab": "designs of attention against their formulas, and what scripts/lab/train recorded of models trained with them",
    "tests/oracle": "rotation and logits by the real programs",
    "tests/report": "what terminals and pages show, of made-up results",
    "tests/verification": "measurements, the gate, readback",
}


def layer_table() -> str:
    """Return the packages of each layer, as tests/test_imports.py holds them."""
    tree = ast.parse((ROOT / "tests/test_imports.py").read_text(encoding="utf-8"))
    layers: tuple[tuple[str, ...], ...] = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "LAYERS"
    )
    rows = [
        (str(number), ", ".join(f"`{name}`" for name in names), "; ".join(filter(None, map(_holds, names))))
        for number, names in enumerate(layers)
    ]
    return _table(("layer", "packages", "what they hold"), rows)


def _holds(package: str) -> str:
    front = ROOT / "ropetool" / package / "__init__.py"
    return _said(front) if front.is_file() else ""


def tree() -> str:
    """Return the folders of the project, one a line, with what each holds."""
    lines = [line for name in ("ropetool", "docs", "scripts", "tests") for line in _branch(ROOT / name, 0)]
    width = max(len(left) for left, _ in lines)
    return "```text\n" + "".join(f"{left:<{width}}  {right}\n" for left, right in lines) + "```"


def _branch(path: Path, depth: int) -> Iterator[tuple[str, str]]:
    name = path.relative_to(ROOT).as_posix()
    yield f"{'  ' * depth}{path.name}/", SAID.get(name) or _title(path / "README.md") or _said(path / "__init__.py")
    if name != "ropetool/demo":
        for inner in sorted(inner for inner in path.iterdir() if inner.is_dir() and any(inner.glob("*.py"))):
            yield from _branch(inner, depth + 1)


def _title(readme: Path) -> str:
    """Return the first line of a README, which says what its folder holds; empty without one."""
    return readme.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") if readme.is_file() else ""


def _said(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?: |$)", " ".join(said.partition("\n\n")[0].split()))[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    parser.add_argument("--examples", action="store_true", help="run the commands of docs/install.md too")
    options = parser.parse_args()
    check = options.check
    if options.examples:
        (ROOT / TUTORIAL).write_text(tutorial_with_examples(), encoding="utf-8")
    stale = 0
    for path, text in generated():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(f"{path.relative_to(ROOT)} is {'stale; run scripts/docs.py' if check else 'written'}", file=sys.stderr)
        if not check:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
