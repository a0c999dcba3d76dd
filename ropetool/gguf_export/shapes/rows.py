"""The rows of a family's table: one tensor of a GGUF file, and where a checkpoint of transformers holds it.

Sizes stand by their names here; a model's numbers come in where a table is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ropetool.gguf_export.shapes.orders import Order, neighbours

ALWAYS = ""


@dataclass(frozen=True)
class Row:
    """A tensor: `source` in the checkpoint, `name` in the file, both below their layer.

    shape: the sizes of the source. when: the switch that must be on, or off behind a `not`. order: how its elements
    move. offset: what llama.cpp wants added to each. many: the size that counts sources named by {x}, which follow
    each other in the file. written: the sizes in the file, where they are not those of the sources.
    """

    source: str
    name: str
    shape: str
    when: str = ALWAYS
    order: Order | None = None
    offset: float = 0.0
    many: str = ""
    written: str = ""


Rows = tuple[Row, ...]


def vector(source: str, name: str, size: str = "hidden", when: str = ALWAYS, offset: float = 0.0) -> Row:
    """Return the weight of a norm."""
    return Row(f"{source}.weight", f"{name}.weight", size, when, offset=offset)


def affine(source: str, name: str, when: str = ALWAYS) -> Rows:
    """Return the weight and the bias of a norm."""
    return tuple(Row(f"{source}.{kind}", f"{name}.{kind}", "hidden", when) for kind in ("weight", "bias"))


def linear(source: str, name: str, rows: str, columns: str, bias: str | None = None, when: str = ALWAYS) -> Rows:
    """Return a projection; bias: the switch of its bias, None where it has none."""
    weight = Row(f"{source}.weight", f"{name}.weight", f"{rows} {columns}", when)
    return (weight,) if bias is None else (weight, Row(f"{source}.bias", f"{name}.bias", rows, bias))


def rotating(rows: Rows) -> Rows:
    """Return the rows of queries or keys, which change places where llama.cpp pairs other channels."""
    return tuple(replace(row, order=neighbours) for row in rows)


def attention(bias: str | None = None, output_bias: str | None = None, block: str = "self_attn") -> Rows:
    """Return the four projections of an attention; the biases' switches, None where it has none."""
    return (
        *rotating(linear(f"{block}.q_proj", "attn_q", "queries", "hidden", bias)),
        *rotating(linear(f"{block}.k_proj", "attn_k", "keys", "hidden", bias)),
        *linear(f"{block}.v_proj", "attn_v", "keys", "hidden", bias),
        *linear(f"{block}.o_proj", "attn_output", "hidden", "queries", output_bias),
    )


def head_norms(size: str = "head_dim", key_size: str = "", offset: float = 0.0) -> Rows:
    """Return the norms of queries and keys: one of a head, or of all heads of a side."""
    return (
        vector("self_attn.q_norm", "attn_q_norm", size, offset=offset),
        vector("self_attn.k_norm", "attn_k_norm", key_size or size, offset=offset),
    )


def gated(
    block: str = "mlp", suffix: str = "", inner: str = "intermediate", bias: str | None = None, when: str = ALWAYS
) -> Rows:
    """Return a feed-forward with a gate."""
    return (
        *linear(f"{block}.gate_proj", f"ffn_gate{suffix}", inner, "hidden", bias, when),
        *linear(f"{block}.up_proj", f"ffn_up{suffix}", inner, "hidden", bias, when),
        *linear(f"{block}.down_proj", f"ffn_down{suffix}", "hidden", inner, bias, when),
    )


def experts(block: str, names: tuple[str, str, str], inner: str, when: str = ALWAYS) -> Rows:
    """Return experts, each with matrices of its own; names: those of the gate, of up and of down."""
    found = zip(names, ("gate", "up", "down"), (f"{inner} hidden", f"{inner} hidden", f"hidden {inner}"), strict=True)
    return tuple(
        Row(f"{block}.{{x}}.{theirs}.weight", f"ffn_{ours}_exps.weight", shape, when, many="experts")
        for theirs, ours, shape in found
    )


def fused_gate() -> Rows:
    """Return a feed-forward whose gate and up stand in one matrix, the gate first."""
    return (
        *linear("mlp.gate_up_proj", "ffn_up", "twice", "hidden"),
        *linear("mlp.down_proj", "ffn_down", "hidden", "intermediate"),
    )
