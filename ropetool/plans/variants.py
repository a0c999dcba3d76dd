"""Several extensions of one model: their outputs, the routing files next to them, and the checks before the first write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError, OutputError
from ropetool.escaping import command
from ropetool.files import linking
from ropetool.files.counting import byte_size
from ropetool.files.shard_names import model_name, shard_paths
from ropetool.plans import routing
from ropetool.plans.applying import check_target
from ropetool.plans.basis import UNSCALED
from ropetool.plans.plan import Plan
from ropetool.plans.routing import RoutedModel
from ropetool.plans.serving import server_of
from ropetool.runtimes import Runtime
from ropetool.runtimes.inspection import inspect_checkpoint

CONFIGS = ("llama-swap", "litellm")


@dataclass(frozen=True)
class LengthVariant:
    """An extension to one length.

    output: the path to write.
    new_bytes: the size of its weight files that are copies; the others share the storage of the source.
    """

    plan: Plan
    output: Path
    new_bytes: int


@dataclass(frozen=True)
class Variants:
    """The extensions of one model, the shortest first.

    source: the path of the model.
    server: the program that serves them.
    models: the source, then the outputs, as a router offers them.
    group: the name that clients of LiteLLM use for all of them.
    files: the paths of the routing files, by router.
    """

    source: Path
    variants: tuple[LengthVariant, ...]
    server: Runtime
    models: tuple[RoutedModel, ...]
    group: str
    files: dict[str, Path]

    @classmethod
    def of(cls, source: Checkpoint, plans: Sequence[Plan], folder: Path | None, *, copy: bool) -> Variants:
        """Return the extensions by these plans.

        plans: the shortest length first.
        folder: the folder of the outputs; None for the default.
        copy: the weight files are copied, not linked.
        Raises: ConfigError for a length within the context of the source; LossyExport if no server reads all outputs.
        """
        path = _absolute(source.path)
        outputs = [_output(plan, source.path, folder) for plan in plans]
        inspected = [inspect_checkpoint(source), *(inspect_checkpoint(source.edited(plan.edits)) for plan in plans)]
        native = _native_context(plans[0], inspected[0].rope.max_position_embeddings if inspected[0].rope else 0)
        shortest = plans[0].max_position_embeddings
        if shortest <= native:
            raise ConfigError(
                f"by {plans[0].method}, the shortest variant has a context of {shortest} tokens, and the source {native}",
                where="--variants", try_="longer lengths, or another method",
            )  # fmt: skip
        stem = model_name(plans[0].output_beside(source.path)).removesuffix(f"-{plans[0].suffix}")
        models = (
            RoutedModel(f"{stem}-native", path, native),
            *(
                RoutedModel(model_name(output), _files(source, output)[0], plan.max_position_embeddings)
                for output, plan in zip(outputs, plans, strict=True)
            ),
        )
        variants = tuple(
            LengthVariant(plan, output, _new_bytes(plan, source, output, copy=copy))
            for plan, output in zip(plans, outputs, strict=True)
        )
        named = {router: outputs[0].with_name(f"{stem}-{plans[0].method}-{router}.yaml") for router in CONFIGS}
        return cls(path, variants, server_of(inspected), models, stem, named)

    def check(self, source: Checkpoint, *, force: bool) -> None:
        """Return if all outputs and both routing files can be written, without writing.

        Raises: as `apply`; OutputError if the disk has not enough space.
        """
        routing.check_paths(self.models)
        for variant in self.variants:
            for path in _files(source, variant.output):
                check_target(variant.plan, self.source, path, force=force)
        routing.check_files(list(self.files.values()), self.source, force=force)
        needed, folder = sum(variant.new_bytes for variant in self.variants), self.variants[0].output.parent
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OutputError(
                f"the outputs take {byte_size(needed)}, but {byte_size(free)} are free", where=str(folder),
                try_="pass an -o on a disk with more space, or fewer lengths",
            )  # fmt: skip

    def share_storage(self) -> int:
        """Let the copies in GGUF outputs share their equal blocks with the first output. Return the shared bytes.

        An output does not share blocks with the source, because its longer header moves the tensors to other positions.
        """
        if self.variants[0].plan.format != "gguf":
            return 0
        first, *others = [model.path for model in self.models[1:]]
        return sum(linking.share(first, other) for other in others)

    def write_files(self, *, force: bool) -> tuple[str, ...]:
        """Write the routing files, both or none. Return notes. Raises: OutputError."""
        serving = self.server.serving
        assert serving is not None  # `server_of` returns only servers
        texts = [make(self.group, self.models, serving) for make in (routing.llama_swap, routing.litellm)]
        return routing.write_files(dict(zip(self.files.values(), texts, strict=True)), self.source, force=force)

    def space(self, shared: int = 0) -> str:
        """Return how much space the outputs take, as a sentence. shared: the bytes that `share_storage` returned."""
        needed = sum(variant.new_bytes for variant in self.variants) - shared
        if not needed:
            return "the outputs share the weight files of the source"
        if shared:
            return f"the outputs take {byte_size(needed)}, and share {byte_size(shared)} with each other"
        why = ": the RoPE keys are in the file of the weights" if self.variants[0].plan.format == "gguf" else ""
        return f"the outputs take {byte_size(needed)}, because they need their own weight files{why}"

    def start_lines(self) -> list[str]:
        """Return the command lines that start the routers."""
        swap, proxy = self.files.values()
        return [
            command("llama-swap", "--config", swap),
            f"LITELLM_MASTER_KEY=sk-... {command('litellm', '--config', proxy)}",
        ]


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _output(plan: Plan, source: Path, folder: Path | None) -> Path:
    """Return the path of an output: the default name, with the length if it lacks the length, as after `abf`."""
    default = plan.output_beside(source)
    end, length = default.suffix if plan.format == "gguf" else "", f"-{plan.max_position_embeddings}"
    name = default.name.removesuffix(end).removesuffix(length) + length + end
    return default.with_name(name) if folder is None else _absolute(folder / name)


def _files(source: Checkpoint, output: Path) -> list[Path]:
    """Return the files of a GGUF output, or the directory of a Hugging Face output."""
    return shard_paths(output, len(source.files)) if source.format == "gguf" else [output]


def _native_context(plan: Plan, configured: int) -> int:
    """Return the length that the source reads without an extension. configured: the context in its files."""
    return min(plan.trained_length, configured) if plan.reading == UNSCALED else configured


def _new_bytes(plan: Plan, source: Checkpoint, output: Path, *, copy: bool) -> int:
    """Return the size of the weight files that cannot share the storage of the source."""
    if source.format == "gguf":
        files = [header.path for header in source.files]
        rewritten = {files[0].name, *plan.weight_files}
    else:
        files, rewritten = list(source.directory.weights), set(plan.weight_files)
    here = output.parent.stat().st_dev if output.parent.is_dir() else None
    copied = [file for file in files if copy or file.name in rewritten or file.stat().st_dev != here]
    return sum(file.stat().st_size for file in copied)
