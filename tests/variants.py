"""Methods and their variants by name: the method and its options, for tables over all of them."""

from __future__ import annotations

from typing import Any

LISTS = "lists"  # stands for divisors, of which there are as many as pairs

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "abf": ("abf", {"params": {"rope_theta": 1e7}}),
    "ntk-by-parts": ("ntk-by-parts", {}),
    "attention": ("attention", {}),
    "yarn": ("yarn", {}),
    "yarn, factor none": ("yarn", {"attention_factor": "none"}),
    "yarn, factor 1.3": ("yarn", {"attention_factor": 1.3}),
    "yarn, beta 16": ("yarn", {"params": {"beta_fast": 16}}),
    "yarn, turns": ("yarn", {"params": {"ramp": "turns"}}),
    "yarn, rotary": ("yarn", {"temperature_scope": "rotary"}),
    "llama3": ("llama3", {}),
    "mixed-ntk": ("mixed-ntk", {}),
    "dynamic": ("dynamic", {}),
    "dynamic, freeze": ("dynamic", {"params": {"freeze": 2048}}),
    "longrope": ("longrope", {"params": LISTS}),
    "length": ("length", {}),
}
