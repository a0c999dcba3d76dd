"""A Hugging Face checkpoint that torch runs: tokens in, losses of the requested positions out.

Never keeps the logits of a whole context in memory, only those of a few positions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ropetool import packed
from ropetool.errors import CheckpointError, MissingFile, NotACheckpoint
from ropetool.files.parts import pickled
from ropetool.names import CONFIG_JSON, MODEL_TYPE, PICKLE_SUFFIXES
from ropetool.verification.runners.torch_library import MAP, is_out_of_memory, library, quiet, torch_device, torch_dtype
from ropetool.verification.runners.torch_model import Hidden, TorchModel
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer, reading
from ropetool.verification.scoring import (
    PIECE_TOKENS,
    WIDER,
    Done,
    Generated,
    Logits,
    NoMemory,
    Piece,
    Predictions,
    Scores,
    TokenFilter,
    Tokens,
    before_scored,
    ignore,
)

CPU_BATCH_TOKENS = 8192  # more is not faster on a CPU
GPU_BATCH_TOKENS = 32768
CPU_CHUNK_TOKENS = 16384  # of one row, beyond which it is computed in pieces; a CPU has no out-of-memory to catch
GPU_CHUNK_TOKENS = 131072
GPU_PIECE_TOKENS = 4096  # of a row that is read piece by piece; PIECE_TOKENS on a CPU
MIN_CHUNK_TOKENS = 256
LOGITS_AT_ONCE = 2**24  # entries: 64 MB in float32

Found = TypeVar("Found")


class TorchRunner:
    """A local checkpoint that transformers runs. Loads the tokenizer at once, and the weights when they are first needed.

    device: auto (CUDA, else Apple's MPS, else the CPU), a device name of torch, or map (layers on all devices).
    dtype: auto (the stored type on a GPU, float32 on a CPU), or a name.
    report: receives a note when a batch is halved because memory ran out.
    as_type: the model_type of a built-in class, if the config's own type is only in remote code.

    Raises: MissingDependency without torch and transformers; ConfigError for a missing device or an unknown dtype;
    CheckpointError for files that transformers cannot read, and for packed weights that it cannot run. Remote code never
    runs, and pickle files are never loaded.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        report: Callable[[str], None] | None = None,
        batch_tokens: int | None = None,
        chunk_tokens: int | None = None,
        as_type: str = "",
    ) -> None:
        self._torch, self._transformers = library("torch"), library("transformers")
        self.path = path
        self._spread = device == MAP
        self._device = torch_device(self._torch, device)
        self._dtype = torch_dtype(self._torch, dtype, self._device)
        self._report = report
        on_cpu = self._device.type == "cpu"
        self._batch_tokens = batch_tokens or (CPU_BATCH_TOKENS if on_cpu else GPU_BATCH_TOKENS)
        self._chunk_tokens = chunk_tokens or (CPU_CHUNK_TOKENS if on_cpu else GPU_CHUNK_TOKENS)
        self._loaded: TorchModel | None = None
        _check_files(path)
        self._unpacked = packed.unpacked_by_transformers(path, gpu=self._device.type == "cuda")
        with reading(self._transformers, path):
            self._options = {"config": self._built_in(as_type)} if as_type else {}
        self._tokenizer = TorchTokenizer(path, self._options)
        self.prefix = self._tokenizer.prefix

    @property
    def description(self) -> str:
        """The versions of the libraries, the device and the type, for the record."""
        dtype = str(self._dtype).removeprefix("torch.").replace("auto", "as stored")
        versions = f"torch {self._torch.__version__}, transformers {self._transformers.__version__}"
        device = "layers on all devices" if self._spread else self._device
        untested = ", untested on Apple's GPU" if self._device.type == "mps" else ""
        weights = ", packed weights unpacked" if self._unpacked else ""
        return f"{versions}, {device}, {dtype}{untested}{weights}"

    @property
    def arithmetic(self) -> str:
        """The type in which the model computes, empty for float32. While it is not known (auto), it is bfloat16."""
        dtype = str(self._dtype).removeprefix("torch.").replace("auto", "bfloat16")
        return dtype if dtype in ("bfloat16", "float16") else ""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._tokenizer.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of the text in each token. Their sum is the size of the text in UTF-8."""
        return self._tokenizer.byte_lengths(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row, in float64.

        done: receives the number of tokens of each batch.

        Shapes: rows of one length above `scored` -> (rows, scored). Units: nats.
        Raises: ConfigError if a single row does not fit into memory; CheckpointError as for loading, or if a logit is
        not finite.
        """
        ids = np.array(rows, dtype=np.int64)
        parts = list(self._batches(ids, lambda model, batch: self._scores(model, batch, scored), done))
        return Scores(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the log probabilities of candidate tokens after every row, and the likeliest token.

        Shapes: candidates (rows, candidates). Raises: as `score`.
        """
        ids = np.array(rows, dtype=np.int64)
        parts = list(self._batches(ids, self._last_log_probs, done, np.array(candidates, dtype=np.int64)))
        return Predictions(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits after the tokens of a row, `PIECE_TOKENS` at a time, with the index of the first.

        Shapes: (tokens of the piece, vocabulary). Raises: as `score`.
        """
        yield from self.pieces(self.hidden(ids), len(ids))

    def hidden(self, ids: Sequence[int]) -> Hidden:
        """Return the last hidden states of a row. Raises: as `score`."""
        model = self._model()
        row = np.array([ids], dtype=np.int64)
        hidden = self._fitting(lambda: model.hidden(self._on_device(row), 0, self._chunk_tokens), row)
        assert hidden is not None  # only batches of several rows are halved
        return hidden

    def pieces(self, hidden: Hidden, count: int) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of the hidden states of a row of `count` tokens, as `logits` does."""
        for start in range(0, count, PIECE_TOKENS):
            with self._torch.inference_mode(), quiet(self._transformers):
                piece = self._model().logits(hidden, slice(start, min(start + PIECE_TOKENS, count)))[0]
                wide = self._wide(piece).cpu().numpy()
            yield start, wide  # out here: the mode is of the whole thread, and whoever takes a piece may go elsewhere

    @property
    def model(self) -> TorchModel:
        """The loaded model, for experiments that change it in memory. Raises: as `score`."""
        return self._model()

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Return the logits of the last `count` tokens twice: from step-by-step generation, and from a single pass.

        Raises: as `score`.
        """
        model, row = self._model(), np.array([ids], dtype=np.int64)
        parts = []
        for compute in (model.grown, lambda logits, tokens: model.whole(logits, tokens, self._chunk_tokens)):
            logits = self._fitting(lambda compute=compute: compute(self._on_device(row), count), row)  # type: ignore[misc]
            assert logits is not None  # only batches of several rows are halved
            parts.append(self._wide(logits).cpu().numpy())
        done(row.size)
        return Generated(parts[0], parts[1], model.dtype, not model.fixed_table)

    def read(self, ids: Sequence[int], is_scored: TokenFilter) -> Iterator[Piece]:
        """Yield the losses of the requested tokens of a row, piece by piece. Raises: as `score`."""
        row = np.array([ids], dtype=np.int64)
        model = self._model_for(row)
        on_device = self._on_device(row)
        pieces = model.steps(on_device, PIECE_TOKENS if self._device.type == "cpu" else GPU_PIECE_TOKENS)
        while True:
            # The mode is of the whole thread, so it ends before the caller gets the piece.
            try:
                with self._torch.inference_mode(), quiet(self._transformers):
                    piece = self._piece(model, on_device, *next(pieces), is_scored)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise self._too_long(row.shape[1]) from None
            yield piece
            if piece.end == row.shape[1]:
                return

    def _piece(self, model: TorchModel, row: Any, start: int, hidden: Hidden, is_scored: TokenFilter) -> Piece:
        """Return the losses of the requested tokens of a piece that begins at token `start`."""
        torch, stop = self._torch, start + hidden.states.shape[1]
        places = np.flatnonzero(before_scored(is_scored, start, stop, row.shape[1]))
        on_device = self._on_device(places)
        targets = row[0, on_device + start + 1]
        parts = [
            torch.nn.functional.cross_entropy(wide[0], targets[part], reduction="none")
            for part, wide in self._wide_logits(model, hidden, places.size, on_device)
        ]
        losses = torch.cat(parts).cpu().numpy().astype(np.float64) if parts else np.empty(0)
        if not np.isfinite(losses).all():
            self._refuse_not_finite(model, row[:, :stop].cpu().numpy(), losses[None], start + int(places[0]))
        return Piece(stop, places + start + 1, losses)

    def close(self) -> None:
        """Free the model."""
        if self._loaded is not None:
            self._loaded = None
            self._free()

    def _batches(self, ids: Tokens, compute: Callable[..., Found], done: Done, *more: Tokens) -> Iterator[Found]:
        """Yield the result of `compute` for each batch of rows, with the same rows of the arrays in `more`."""
        model, start = self._model_for(ids), 0
        while start < len(ids):
            part = slice(start, start + max(1, self._batch_tokens // ids.shape[1]))
            figures = self._fitting(lambda part=part: compute(model, ids[part], *(m[part] for m in more)), ids[part])  # type: ignore[misc]
            if figures is not None:
                yield figures
                start += len(ids[part])
                done(ids[part].size)

    def _model_for(self, ids: Tokens) -> TorchModel:
        """Return the model. Raises: CheckpointError if a token of these rows has no embedding."""
        model = self._model()
        if ids.max() >= model.vocabulary:
            raise CheckpointError(
                f"the tokenizer produces token {ids.max()}, but the model has only {model.vocabulary} embeddings",
                where=str(self.path),
            )
        return model

    def _fitting(self, compute: Callable[[], Found], batch: Tokens) -> Found | None:
        """Return the result of `compute`. Return None if memory ran out and the batch size was halved.

        A single row is computed again in smaller chunks.
        """
        while True:
            try:
                with self._torch.inference_mode(), quiet(self._transformers):
                    return compute()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._free()  # out here, where no error holds the tensors of the pass
            if self._halve(batch):
                return None

    def _scores(self, model: TorchModel, batch: Tokens, scored: int) -> tuple[Any, Any]:
        """Return the losses and hits of one batch. Shapes: (rows, scored)."""
        torch, ids = self._torch, self._on_device(batch)
        hidden = model.hidden(ids, batch.shape[1] - scored - 1, self._chunk_tokens)
        targets = ids[:, batch.shape[1] - scored :]
        losses, hits = [], []
        for part, wide in self._wide_logits(model, hidden, scored):
            expected = targets[:, part]
            flat = torch.nn.functional.cross_entropy(wide.flatten(0, 1), expected.flatten(), reduction="none")
            losses.append(flat.view(expected.shape))
            hits.append(wide.argmax(dim=-1) == expected)
        nats = torch.cat(losses, dim=1).cpu().numpy().astype(np.float64)
        self._refuse_not_finite(model, batch, nats, batch.shape[1] - scored - 1)
        return nats, torch.cat(hits, dim=1).cpu().numpy()

    def _last_log_probs(self, model: TorchModel, batch: Tokens, candidates: Tokens) -> tuple[Any, Any]:
        torch = self._torch
        hidden = model.hidden(self._on_device(batch), batch.shape[1] - 1, self._chunk_tokens)
        logits = model.logits(hidden, slice(1))[:, 0]
        log_probs = torch.log_softmax(self._wide(logits), dim=-1)
        chosen = log_probs.gather(1, self._on_device(candidates)).cpu().numpy().astype(np.float64)
        self._refuse_not_finite(model, batch, chosen[:, :1], batch.shape[1] - 1)
        return chosen, logits.argmax(dim=-1).cpu().numpy()

    def _refuse_not_finite(self, model: TorchModel, batch: Tokens, figures: Any, first: int) -> None:
        """Raise CheckpointError naming layer and position, if one of the figures is not finite."""
        bad = np.argwhere(~np.isfinite(figures))
        if not bad.size:
            return
        row, column = (int(index) for index in bad[0])
        layer, position = model.first_not_finite(self._on_device(batch[row : row + 1]))
        position = first + column if position < 0 else position
        raise CheckpointError(
            f"{layer} computes values that are not finite, first at position {position} of {batch.shape[1]}",
            where=str(self.path),
            try_=WIDER,
        )

    def _wide_logits(
        self, model: TorchModel, hidden: Hidden, count: int, places: Any = None
    ) -> Iterator[tuple[slice, Any]]:
        """Yield slices of `count` positions with their logits. Shapes: (rows, positions, vocabulary).

        places: the indices of the positions. None takes the first positions.
        """
        step = max(1, LOGITS_AT_ONCE // (hidden.states.shape[0] * model.vocabulary))
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            yield part, self._wide(model.logits(hidden, part if places is None else places[part]))

    def _wide(self, numbers: Any) -> Any:
        """Return a tensor in float32, or unchanged if its type is wider."""
        return numbers.to(self._torch.promote_types(numbers.dtype, self._torch.float32))

    def _on_device(self, ids: Tokens) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(ids)).to(self._device)

    def _free(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _halve(self, batch: Tokens) -> bool:
        """Halve the batch size, or the chunk size for a single row, and report it. Return whether it was the batch size."""
        rows, length = batch.shape
        chunk = min(self._chunk_tokens, length) // 2
        if rows > 1:
            self._batch_tokens = rows // 2 * length
            self._say(f"no memory for {rows} rows of {length} tokens; continuing with {rows // 2}")
        elif self._model().fixed_table and chunk >= MIN_CHUNK_TOKENS:
            self._chunk_tokens = chunk
            self._say(f"no memory for {length} tokens in one pass; continuing with {chunk} at a time")
        else:
            raise self._too_long(length)
        return bool(rows > 1)

    def _too_long(self, length: int) -> NoMemory:
        return NoMemory(
            f"one row of {length} tokens does not fit into the memory of {self._device}",
            where=str(self.path),
            try_="--dtype bfloat16, a different --device, or shorter --lengths",
        )

    def _say(self, sentence: str) -> None:
        if self._report is not None:
            self._report(f"{self.path.name}: {sentence}")

    def _model(self) -> TorchModel:
        if self._loaded is None:
            self._loaded = TorchModel(self._torch, self._load())
        return self._loaded

    def _built_in(self, as_type: str) -> Any:
        """Return the config as an instance of the built-in class of another model_type."""
        config, _ = self._transformers.PretrainedConfig.get_config_dict(str(self.path), local_files_only=True)
        kept = {key: value for key, value in config.items() if key not in (MODEL_TYPE, "auto_map")}
        return self._transformers.AutoConfig.for_model(as_type, **kept)

    def _auto_class(self) -> Any:
        """Return the auto class whose model has a language head for this config: of most wrappers, the one for images and text."""
        causal, images = self._transformers.AutoModelForCausalLM, self._transformers.AutoModelForImageTextToText
        config = self._options.get("config") or self._transformers.AutoConfig.from_pretrained(
            str(self.path), local_files_only=True, trust_remote_code=False
        )
        known = type(config) not in causal._model_mapping and type(config) in images._model_mapping
        return images if known else causal

    def _load(self) -> Any:
        library("accelerate")  # transformers places weights with it
        # Tensors go to their device as they are read: the memory beside a card need not hold the model.
        # Asked for no attention, transformers takes sdpa, and eager for the few models that refuse it.
        with reading(self._transformers, self.path):
            model, info = self._auto_class().from_pretrained(
                str(self.path),
                dtype=self._dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                device_map="auto" if self._spread else self._device,
                **self._options,
                **({"config": self._unpacking()} if self._unpacked else {}),
            )
        if info["missing_keys"]:
            # transformers would go on with random numbers in their place.
            missing = sorted(info["missing_keys"])
            raise CheckpointError(f"the weights lack {len(missing)} tensors, first {missing[0]}", where=str(self.path))
        # Of a model that it unpacks, transformers leaves the other weights in the stored type.
        return model.eval() if not self._unpacked or self._dtype == "auto" else model.to(self._dtype).eval()

    def _unpacking(self) -> Any:
        """Return the config with the setting that unpacks the weights while they are read."""
        config = self._options.get("config") or self._transformers.AutoConfig.from_pretrained(
            str(self.path), local_files_only=True, trust_remote_code=False
        )
        config.quantization_config = {**config.quantization_config, "dequantize": True}
        return config


def _check_files(path: Path) -> None:
    """Raise unless the path is a directory with a config and safetensors files. Loading checks their contents."""
    if not (path / CONFIG_JSON).is_file():
        raise NotACheckpoint(f"no {CONFIG_JSON} here; a checkpoint directory must contain one", where=str(path))
    pickles = sorted(file.name for file in path.iterdir() if file.name.endswith(PICKLE_SUFFIXES))
    if not any(path.glob("*.safetensors")) and pickles:
        raise pickled(str(path), pickles[0])
    if not any(path.glob("*.safetensors")):
        raise MissingFile("no safetensors weights here; running a model needs them", where=str(path))
