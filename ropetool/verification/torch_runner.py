"""A Hugging Face checkpoint run by torch: tokens in, losses of the last tokens out.

Holds logits of scored tokens only, never of a whole context. Knows nothing of documents, segments or verdicts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import CheckpointError, ConfigError, MissingFile, NotACheckpoint
from ropetool.names import CONFIG_JSON
from ropetool.spec import Array
from ropetool.verification.torch_library import RopeState, is_out_of_memory, library, quiet, torch_device, torch_dtype

CPU_BATCH_TOKENS = 8192  # more is no faster on a CPU
GPU_BATCH_TOKENS = 32768
BATCH_LOGITS = 2**27  # entries: 0.5 GB in float32, one batch's logits at most
CHUNK_LOGITS = 2**24  # entries: 64 MB, what the cross entropy holds in float32 at a time

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class TorchRunner:
    """A local checkpoint; the tokenizer is read at once, the weights when the first losses are asked for.

    device: auto (CUDA, else Apple's MPS, else the CPU) or a name of torch's. dtype: auto (as stored on a GPU,
    float32 on a CPU) or a name. report: told when a batch had to be halved for lack of memory.

    Raises: MissingDependency without torch and transformers; ConfigError for a device or dtype that is not there;
    CheckpointError for files that transformers cannot read. Remote code is never run and pickle never loaded.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        report: Callable[[str], None] | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self._torch, self._transformers = library("torch"), library("transformers")
        self.path = path
        self._device = torch_device(self._torch, device)
        self._dtype = torch_dtype(self._torch, dtype, self._device)
        self._report = report
        self._batch_tokens = batch_tokens or (CPU_BATCH_TOKENS if self._device.type == "cpu" else GPU_BATCH_TOKENS)
        self._loaded: tuple[Any, RopeState] | None = None
        _check_files(path)
        with self._reading():
            self._tokenizer = self._transformers.AutoTokenizer.from_pretrained(
                str(path), local_files_only=True, trust_remote_code=False
            )
            self.prefix = self._prefix()

    @property
    def description(self) -> str:
        """The libraries, device and type, for the record."""
        dtype = str(self._dtype).removeprefix("torch.").replace("auto", "as stored")
        versions = f"torch {self._torch.__version__}, transformers {self._transformers.__version__}"
        return f"{versions}, {self._device}, {dtype}"

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        with quiet(self._transformers):
            return self._ids(text, special=False)

    def losses(self, rows: Sequence[Sequence[int]], scored: int, done: Callable[[int], None] | None = None) -> Array:
        """Return the loss of each of the last `scored` tokens of every row, in float64.

        `done` is told after each batch how many tokens it had.

        Shapes: rows of one length, over `scored` -> (rows, scored). Units: nats.
        Raises: ConfigError if a single row does not fit into memory; CheckpointError as for loading.
        """
        model, rope_state = self._loaded or self._load()
        ids = np.array(rows, dtype=np.int64)
        result = np.empty((len(ids), scored))
        start = 0
        while start < len(ids):
            batch = ids[start : start + self._batch_rows(model, ids, scored)]
            rope_state.restore()
            found = self._forward(model, batch, scored)
            if found is None:
                self._halve(batch)
                continue
            result[start : start + len(batch)] = found
            start += len(batch)
            if done is not None:
                done(batch.size)
        return result

    def logits(self, ids: Sequence[int]) -> Logits:
        """Return the logits after every token of a row.

        Shapes: (tokens,) -> (tokens, vocabulary). Raises: CheckpointError as for loading.
        """
        model, rope_state = self._loaded or self._load()
        rope_state.restore()
        row = self._torch.tensor([list(ids)], device=self._device)
        with self._torch.inference_mode(), quiet(self._transformers):
            found: Logits = model(input_ids=row, use_cache=False).logits[0].float().cpu().numpy()
        return found

    def close(self) -> None:
        """Free the model."""
        self._loaded = None
        self._free()

    def _batch_rows(self, model: Any, ids: Tokens, scored: int) -> int:
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        if ids.max() >= vocabulary:
            raise CheckpointError(
                f"the tokenizer gives token {ids.max()}, but the model has embeddings for {vocabulary}",
                where=str(self.path),
            )
        length = int(ids.shape[1])
        return max(1, min(self._batch_tokens // length, BATCH_LOGITS // ((scored + 1) * vocabulary)))

    def _forward(self, model: Any, batch: Tokens, scored: int) -> Array | None:
        """Return the losses of one forward pass, or None if it ran out of memory."""
        ids = self._torch.from_numpy(batch).to(self._device)
        try:
            with self._torch.inference_mode(), quiet(self._transformers):
                # No mask and no position_ids: rows are of one length, and transformers reads steps other than one
                # as the borders of packed sequences.
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=scored + 1).logits
                return _cross_entropy(self._torch, logits[:, -scored - 1 : -1], ids[:, -scored:])
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        self._free()  # out here, where no error holds the tensors of the pass
        return None

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _halve(self, batch: Tokens) -> None:
        rows, length = batch.shape
        if rows == 1:
            raise ConfigError(
                f"one row of {length} tokens does not fit into the memory of {self._device}",
                where=str(self.path),
                try_="--dtype bfloat16, another --device, or shorter --lengths",
            )
        self._batch_tokens = rows // 2 * length
        if self._report is not None:
            self._report(f"{self.path.name}: no memory for {rows} rows of {length} tokens; going on with {rows // 2}")

    def _load(self) -> tuple[Any, RopeState]:
        # Asked for no attention, transformers takes sdpa, and eager for the few models that refuse it.
        with self._reading():
            model, info = self._transformers.AutoModelForCausalLM.from_pretrained(
                str(self.path),
                dtype=self._dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        if info["missing_keys"]:
            # transformers would go on with random numbers in their place.
            missing = sorted(info["missing_keys"])
            raise CheckpointError(f"{len(missing)} tensors are missing, first {missing[0]}", where=str(self.path))
        model = model.to(self._device).eval()
        self._loaded = model, RopeState(model)
        return self._loaded

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what transformers raises for a checkpoint that it cannot read into one sentence."""
        unreadable = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)
        try:
            with quiet(self._transformers):
                yield
        except (*unreadable, import_module("safetensors").SafetensorError) as error:
            sentence = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(f"transformers cannot load it: {sentence:.300}", where=str(self.path)) from error

    def _ids(self, text: str, special: bool) -> list[int]:
        return [int(token) for token in self._tokenizer(text, add_special_tokens=special)["input_ids"]]

    def _prefix(self) -> tuple[int, ...]:
        """Return the special tokens in front of a text, by tokenizing one: what configs say of BOS is often wrong."""
        plain, special = self._ids("a", special=False), self._ids("a", special=True)
        starts = (at for at in range(len(special)) if special[at : at + len(plain)] == plain)
        return tuple(special[: next(starts, 0)])


def _check_files(path: Path) -> None:
    """Raise unless the path is a directory with a config and safetensors; their contents are checked on loading."""
    if not (path / CONFIG_JSON).is_file():
        raise NotACheckpoint(f"there is no {CONFIG_JSON}; a checkpoint is a directory that holds one", where=str(path))
    if not any(path.glob("*.safetensors")):
        raise MissingFile("there are no safetensors weights, so nothing can be computed", where=str(path))


def _cross_entropy(torch: Any, logits: Any, targets: Any) -> Array:
    """Return the loss of each target, computed in float32 or wider, a few rows at a time.

    Shapes: logits (rows, scored, vocabulary), targets (rows, scored) -> (rows, scored).
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    rows = max(1, CHUNK_LOGITS // logits[0].numel())
    parts = [
        torch.nn.functional.cross_entropy(part.to(wide).flatten(0, 1), wanted.flatten(), reduction="none")
        for part, wanted in zip(logits.split(rows), targets.split(rows), strict=True)
    ]
    losses: Array = torch.cat(parts).view(targets.shape).cpu().numpy().astype(np.float64)
    return losses
