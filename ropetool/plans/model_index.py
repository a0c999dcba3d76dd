"""The results of `verify` in a card's front matter: an entry of `model-index`, which the Hugging Face Hub reads.

Entries of other authors, and all other lines, stay unchanged. The format is that of
huggingface_hub.model_index_to_eval_results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ropetool import names
from ropetool.escaping import command, escaped

if TYPE_CHECKING:
    from yaml import Node

KEY = names.MODEL_INDEX
DATASETS = {  # the type and the name of the dataset, by the origin of the texts
    "package": ("ropetool-built-in-texts", "built-in texts of ropetool"),
    "catalogue": ("ropetool-text-catalogue", "text catalogue of ropetool"),
    "mixed": ("ropetool-mixed-texts", "text catalogue of ropetool, and other texts"),
}
OWN = ("ropetool-other-texts", "texts of the user")
OURS = "ropetool-"  # the type of every dataset in an entry of ropetool begins with this
QUESTIONS = {  # the type and the name of the metric; figures of later versions are left out
    "short texts": ("perplexity-ratio-short-texts", "Perplexity ratio on short texts of {length:,} tokens"),
    "whole length": ("perplexity-ratio-at-length", "Perplexity ratio at {length:,} tokens"),
    "lengths": ("perplexity-ratio-at-length", "Perplexity ratio at {length:,} tokens"),  # of a suite
}
FILE = {"true": "correct", "false": "wrong"}  # a check that could not run is left out
_EMPTY: tuple[Any, ...] = ("", "~", "null", [])
_MOST = 1 << 19  # characters of front matter; cards with hundreds of results have about half of this


def entry(certificate: Mapping[str, Any], name: str, *, of_source: bool = False) -> dict[str, Any] | None:
    """Return the entry for a certificate, with the measured figures only. None for a certificate without a summary.

    name: the name of the model.
    of_source: the certificate is for the checkpoint that this model was exported from.
    """
    summary = certificate.get("summary")
    if summary is None:
        return None
    texts = certificate.get("texts") or {}
    kind, title = DATASETS.get(texts.get("origin", ""), OWN)
    documents = {"args": {"documents": texts["documents"]}} if "documents" in texts else {}
    of_what = " of the checkpoint before the export" if of_source else ""
    metrics = [
        {**metric, "name": f"{metric['name']}{of_what}"} for metric in _metrics(summary, str(certificate["suite"]))
    ]
    result = {
        "task": {"type": "text-generation"},
        "dataset": {"type": kind, "name": title, **documents},
        "metrics": metrics,
    }
    return {"name": escaped(name), "results": [result]}


def _metrics(summary: Mapping[str, Any], suite: str) -> Iterator[dict[str, Any]]:
    run = command("ropetool", "verify", *([] if suite == "default" else ["--suite", suite]))
    yield {"type": "ropetool-verdict", "name": f"Verdict of {run}", "value": summary["verdict"]}
    if summary["file"] in FILE:
        yield {"type": "ropetool-file-check", "name": "Tables and files", "value": FILE[summary["file"]]}
    for figure in (figure for figure in summary["figures"] if figure["question"] in QUESTIONS):
        kind, name = QUESTIONS[figure["question"]]
        lower, upper = (round(figure[bound], 4) for bound in ("lower", "upper"))
        yield {
            "type": kind,
            "name": f"{name.format(length=figure['length'])} (95 % bounds {lower:.3f} to {upper:.3f})",
            "value": round(figure["ratio"], 4),
            "args": {"length": figure["length"], "lower": lower, "upper": upper, "texts": figure["texts"]},
        }


# --- the lines of YAML


def with_entry(front: str, new: Mapping[str, Any] | None, newline: str = "\n") -> str:
    """Return the lines of front matter with this entry of ropetool in place of an earlier one. None only removes it.

    Lines that are not valid YAML stay unchanged, and so does a `model-index` in another form than one entry per line.
    """
    if new is None and KEY not in front:
        return front
    before, root = _parsed(front)
    entries = [] if before is None or before.get(KEY, "") in _EMPTY else before[KEY]
    if before is None or not isinstance(entries, list) or (new is None and not entries):
        return front
    changed = _edited(front, root, entries, new, newline)
    added = [] if new is None else (_parsed(_lines({KEY: [new]}))[0] or {})[KEY]
    listed = [*added, *_of_others(entries)]
    expected = {key: value for key, value in before.items() if key != KEY} | ({KEY: listed} if listed else {})
    return changed if _parsed(changed)[0] == expected else front


def _parsed(front: str) -> tuple[dict[str, Any] | None, Node | None]:
    """Return front matter with every value as text, and its node. None for both if it is not a mapping, or too long."""
    import yaml

    if len(front) > _MOST:
        return None, None
    try:
        # The loader in C crashes on deep nesting. This one constructs only texts, lists and mappings.
        loader = yaml.BaseLoader(front)
        root = loader.get_single_node()
        value = {} if root is None else loader.construct_document(root)
    except (yaml.YAMLError, RecursionError):
        return None, None
    return (value, root) if isinstance(value, dict) else (None, None)


def _results(each: Any) -> list[Any]:
    results = each.get("results") if isinstance(each, dict) else None
    return results if isinstance(results, list) else []


def _is_ours(result: Any) -> bool:
    dataset = result.get("dataset") if isinstance(result, dict) else None
    return isinstance(dataset, dict) and str(dataset.get("type")).startswith(OURS)


def _of_others(entries: Sequence[Any]) -> list[Any]:
    """Return the entries without ropetool's results, which the Hub's own tools may have merged with others."""
    left = []
    for each in entries:
        results = [result for result in _results(each) if not _is_ours(result)]
        if results or not _results(each):
            left.append({**each, "results": results} if results else each)
    return left


def _nodes_of_ours(entries: Sequence[Any], nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes of ropetool's results, or of their entry if it has no others. nodes: of the entries."""
    for each, node in zip(entries, nodes, strict=True):
        ours = list(map(_is_ours, _results(each)))
        if ours and all(ours):
            yield node
        elif any(ours):
            (results,) = (value for key, value in node.value if key.value == "results")
            yield from (result for result, is_ours in zip(results.value, ours, strict=True) if is_ours)


def _edited(front: str, root: Node | None, entries: Sequence[Any], new: Mapping[str, Any] | None, newline: str) -> str:
    """Return the lines with the new entry as the first of its list, and without ropetool's earlier results."""
    pairs = [] if root is None else [pair for pair in root.value if pair[0].value == KEY]
    own_lines = "" if new is None else _lines({KEY: [new]}, newline)
    if not pairs:
        return front + own_lines
    key, value = pairs[0]
    ours = list(_nodes_of_ours(entries, value.value)) if entries else []
    if not _of_others(entries):
        start, end = _first_of_line(front, key), _end_of_line(front, value)
        return front[:start] + own_lines + front[end:]
    at = _first_of_line(front, value)
    for node in reversed(ours):
        front = front[: _first_of_line(front, node)] + front[_end_of_line(front, node) :]
    listed = "" if new is None else _lines([new], newline, value.start_mark.column)
    return front[:at] + listed + front[at:]


def _first_of_line(front: str, node: Node) -> int:
    return front.rfind("\n", 0, node.start_mark.index) + 1


def _end_of_line(front: str, node: Node) -> int:
    """Return where the line after the node's last value begins. The node itself would include the comments below it."""
    while isinstance(node.value, list) and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = front.find("\n", node.end_mark.index)
    return len(front) if end < 0 else end + 1


def _lines(value: Any, newline: str = "\n", column: int = 0) -> str:
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=float("inf"))
    return "".join(f"{' ' * column}{line}{newline}" for line in text.splitlines())
