"""Measure the attention of a loaded checkpoint on a text: far keys, first keys, repeated text, and the rotary pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.opening import Checkpoint
from ropetool.choosing.source import SourceModel
from ropetool.errors import ConfigError
from ropetool.files import hub
from ropetool.lab.yardsticks import blocked, pairs
from ropetool.lab.yardsticks.attention import pair_of
from ropetool.lab.yardsticks.runner import alterable, check_fit, rotation_of
from ropetool.rope.tables import TABLE_TOLERANCE, Array
from ropetool.verification.runners.torch_attention import Unfit, Unrotated
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.session import documents_of

PLACES = 64  # queries that are looked at, in the second half of a text or in its second copy
FIRST = 4  # keys at the front that count as sinks
LEAST, MOST = 16, 2048  # tokens of a text
FAR = 0.25  # of the tokens: the distance from which a key is far


@dataclass(frozen=True)
class UsageOptions:
    """How usage is measured.

    text: a file; None for a bundled text. length: tokens that are read; None for the trained length, at most 2,048.
    device, dtype: as in `verify`.
    """

    text: str | Path | None = None
    length: int | None = None
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True, eq=False)
class Usage:
    """The attention of the layers that see the whole text. Shapes: (layers, heads), pairs (layers, heads, pairs).

    name, trained: the checkpoint's name, and its trained length in tokens.
    document, tokens: the text's name, and the number of tokens that were read.
    layers: their numbers.
    first: the share of the attention on the first four tokens.
    far: its share on tokens at least a quarter of the text away, without the first four.
    copies: in a text that is repeated once, its share on the token after the earlier copy of the present one.
    by_pair: the variance over the keys that each rotary pair adds to the scores, as a share of the sum over the pairs.
    inv_freq: in radians per token. Shape: (pairs,).
    runtime: what computed it.
    """

    name: str
    trained: int
    tokens: int
    document: str
    layers: tuple[int, ...]
    first: Array
    far: Array
    copies: Array
    by_pair: Array
    inv_freq: Array
    runtime: str = ""


def measure_usage(source: str | Path | Checkpoint, options: UsageOptions) -> Usage:
    """Load a checkpoint and return what its attention does with a text, in two forward passes.

    Raises: CheckpointError; ConfigError for a text that is too short, and for a model whose attention cannot be looked at.
    """
    model = SourceModel.of(source, "use")
    where = str(model.checkpoint.path)
    length = options.length or min(model.trained, MOST)
    if not LEAST <= length <= model.trained:
        raise ConfigError(
            f"{length} is not a length from {LEAST} to the trained {model.trained} tokens", where="--length",
            try_=f"--length {min(model.trained, MOST)}",
        )  # fmt: skip
    (document, *_) = documents_of(() if options.text is None else (options.text,), length, [])
    runner = TorchRunner(model.checkpoint.path, device=options.device, dtype=options.dtype)
    try:
        ids = runner.tokenize(document.text[: 32 * length])[: length - len(runner.prefix)]
        if len(ids) + len(runner.prefix) < length:
            raise ConfigError(
                f"{document.name} has {len(ids)} tokens, and {length} are read", where="--text",
                try_="a longer text, or --length",
            )  # fmt: skip
        chosen = alterable(model.rope)
        check_fit(runner, chosen, model.trained)
        look, inv_freq = _look(model, chosen)
        half = len(ids) // 2
        read = look.over(runner, ids)
        copied = replace(look, period=half).over(runner, [*ids[:half], *ids[:half]])
        return Usage(
            hub.name_of(model.checkpoint.path), model.trained, length, document.name, tuple(sorted(chosen)),
            read.first, read.far, copied.copies, read.by_pair, inv_freq, runner.description,
        )  # fmt: skip
    except Unfit as error:
        raise ConfigError(f"its attention cannot be looked at: {error}", where=where) from None
    finally:
        runner.close()


def _look(model: SourceModel, layers: frozenset[int]) -> tuple[_Look, Array]:
    """Return how these layers are looked at, and their inverse frequencies. Raises: Unfit if their tables differ."""
    layout, pairs = rotation_of(model.rope, layers)
    entries = [entry for entry in model.rope.entries.values() if entry.table and layers.issuperset(entry.layers)]
    inv_freq = [entry.table.at(model.trained).inv_freq for entry in entries if entry.table]
    if any(not np.allclose(each, inv_freq[0], rtol=TABLE_TOLERANCE) for each in inv_freq):
        raise Unfit("its layers have different tables")
    return _Look(layers, layout, pairs), inv_freq[0]


@dataclass(frozen=True, eq=False)
class _Shares:
    """As in `Usage`, of one pass."""

    first: Array
    far: Array
    copies: Array
    by_pair: Array


@dataclass(frozen=True)
class _Look:
    """A pass that is looked at. period: tokens between the copies of a repeated text; 0 without copies."""

    layers: frozenset[int]
    layout: str
    pairs: int
    period: int = 0

    def over(self, runner: TorchRunner, ids: Sequence[int]) -> _Shares:
        """Return the shares over a row, which gets the tokens in front of every text. Raises: Unfit."""
        shares: list[_Shares] = []

        def attend(layer: Unrotated) -> Any:
            import torch

            wide = torch.promote_types(layer.values.dtype, torch.float32)
            queries, keys = layer.queries().to(wide), layer.keys().to(wide)
            shares.append(self._layer(layer, queries[0], keys[0]))
            attended = blocked.attend(
                [queries], [keys], layer.values.to(wide), pairs.PLAIN,
                scaling=layer.scaling, softcap=layer.softcap, sinks=layer.sinks,
            )  # fmt: skip
            return attended.to(layer.values.dtype)

        with runner.model.attending(self.layers, attend):
            for _ in runner.logits([*runner.prefix, *ids]):
                pass
        return _Shares(
            *(np.stack([vars(each)[name] for each in shares]) for name in ("first", "far", "copies", "by_pair"))
        )

    def _layer(self, layer: Unrotated, queries: Any, keys: Any) -> _Shares:
        """Return the shares of a layer. Shapes: queries (heads, tokens, channels), keys (key heads, tokens, channels)."""
        import torch

        heads, tokens, _ = queries.shape
        begin = tokens - self.period if self.period else tokens // 2  # of the second copy
        places = torch.linspace(begin, tokens - 1, min(PLACES, tokens - begin)).long().to(queries.device)
        asked = queries[:, places]
        every = keys.repeat_interleave(heads // len(keys), dim=0)
        keys_at = torch.arange(tokens, device=queries.device)
        seen = keys_at <= places[:, None]
        scores = asked @ every.mT * layer.scaling
        if layer.softcap is not None:
            scores = torch.tanh(scores / layer.softcap) * layer.softcap
        scores = scores.masked_fill(~seen, -torch.inf)
        if layer.sinks is not None:  # a score without a key takes its share
            alone = layer.sinks.to(scores).view(heads, 1, 1).expand(-1, len(places), 1)
            scores = torch.cat([scores, alone], dim=-1)
        weights = scores.softmax(dim=-1)[..., :tokens]
        distant = (places[:, None] - keys_at >= FAR * tokens) & (keys_at >= FIRST)
        copy = (keys_at == places[:, None] - self.period + 1) & bool(self.period)
        first, far, copies = (
            _mean((weights * part).sum(dim=-1)) for part in ((keys_at < FIRST).float(), distant.float(), copy.float())
        )
        return _Shares(first, far, copies, self._by_pair(asked, every, seen))

    def _by_pair(self, asked: Any, every: Any, seen: Any) -> Array:
        """Return the variance of each pair's part of the scores over the keys that are seen, as shares. Shape: (heads, pairs)."""
        channel_pairs = pair_of(self.layout, self.pairs, asked.shape[-1])[: 2 * self.pairs]
        variances = []
        for pair in range(self.pairs):
            channels = np.flatnonzero(channel_pairs == pair)
            part = asked[..., channels] @ every[..., channels].mT
            count = seen.sum(dim=-1)
            mean = (part * seen).sum(dim=-1) / count
            variances.append(_mean(((part - mean[..., None]) ** 2 * seen).sum(dim=-1) / count))
        by_pair = np.stack(variances, axis=-1)
        return np.asarray(by_pair / by_pair.sum(axis=-1, keepdims=True))


def _mean(by_query: Any) -> Array:
    """Return the mean over the queries. Shapes: (heads, queries) -> (heads,)."""
    return np.asarray(by_query.mean(dim=-1).cpu().numpy(), dtype=np.float64)
