"""The command lines that serve an output unchanged: its files set everything, so that a server needs only the context.

Each program's reading of the output is decoded. A release that would compute something else gets the reason instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ropetool import runtimes
from ropetool.errors import LossyExport
from ropetool.rope.tables import RopeSet
from ropetool.runtimes import Runtime
from ropetool.runtimes.base import Serving
from ropetool.runtimes.decoded import Decoded
from ropetool.runtimes.inspection import Inspection

UNKNOWN, STOPS, DIFFERS = REASONS = ("not known: ", "does not load it: ", "would compute something else: ")


def serving_lines(output: Inspection, shown: str) -> list[str]:
    """Return a line for each server, or range of its releases, that reads the format; none for an unknown family.

    shown: the output's name in the lines.
    """
    context = 0 if output.rope is None else output.rope.max_position_embeddings
    alike: dict[str, list[str]] = {}
    own: dict[Serving, str] = {}  # the line of each program, for all its releases
    others: list[str] = []
    for runtime in runtimes.for_format(output.format):
        serving = runtime.serving
        reading = None if serving is None else output.readings.named(runtime.name)
        if serving is None or reading is None:
            continue
        line = _objection(reading, output)
        if not line and serving not in own:
            own[serving] = serving.line(shown, context)
            others += serving.others(shown, context, None)
        alike.setdefault(line or own[serving], []).append(runtime.name)
    lines = [f"{', '.join(runtimes.display_ranges(names))}: {line}" for line, names in alike.items()]
    return [*lines, *others]


def server_of(outputs: Sequence[Inspection]) -> Runtime:
    """Return the first server whose newest known release computes the same from all outputs as their own runtime.

    Raises: LossyExport if no server does.
    """
    newest = {runtime.program: runtime for runtime in runtimes.for_format(outputs[0].format) if runtime.serving}
    objections = []
    for runtime in sorted(newest.values(), key=lambda runtime: runtime.program != runtimes.FIRST_SERVER):
        readings = [(output, output.readings.named(runtime.name)) for output in outputs]
        reasons = [_objection(reading, output) for output, reading in readings if reading is not None]
        if not any(reasons):
            return runtime
        objections.append(f"{runtime.name}: {next(filter(None, reasons))}")
    raise LossyExport(f"no server can serve all outputs: {'; '.join(objections)}", where=str(outputs[0].source))


def gguf_lines(shown: str, context: int, modelfile: Path | None = None) -> list[str]:
    """Return the lines for a GGUF file that llama.cpp reads as the target: of llama.cpp and of programs that run it.

    shown: the file's name in the lines.
    context: the context length, in tokens.
    modelfile: the place of the Modelfile for Ollama, or None.
    """
    runtime = runtimes.get(runtimes.LLAMA_CPP)
    assert runtime.serving is not None
    own = f"{runtime.program}: {runtime.serving.line(shown, context)}"
    return [own, *runtime.serving.others(shown, context, modelfile)]


def commands(lines: list[str]) -> list[str]:
    """Return only the command lines, without the names of programs and without reasons."""
    bare = [line.partition(": ")[2] for line in lines]
    return list(dict.fromkeys(line for line in bare if not line.startswith(REASONS)))


def _target(output: Inspection) -> RopeSet | None:
    """Return the planned tables of an output: those that the first runtime in its record reads, or else its format's runtime."""
    planned = output.made.plan.get("runtimes", ()) if output.made is not None else ()
    for name in planned:
        reading = output.readings.named(name) if name != runtimes.LLAMA_CPP else None
        if reading is not None and reading.rope is not None:
            return reading.rope
    return output.rope


def _objection(reading: Decoded, output: Inspection) -> str:
    """Return why the program does not compute the tables that the output was planned with; empty if it does."""
    target = _target(output)
    if reading.rope is None or target is None:
        return f"{STOPS if reading.known else UNKNOWN}{reading.refuses}"
    differences = target.mismatch(reading.rope)
    return f"{DIFFERS}{differences}" if differences else ""
