"""The published formulas of every method, evaluated by mpmath with 50 digits: one of the two oracles of golden.py.

Notation: f inverse frequencies, d rotary channels, s factor, L trained length, r turns in L, A attention factor.
Never imports ropetool. A case `c` is a row of a golden file, `p` its parameters with the published defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mpmath import mp, mpf

mp.dps = 50
DIGITS = 12  # of the numbers written

Case = dict[str, Any]
Numbers = list[mpf]

DEFAULTS: dict[str, Case] = {
    "ntk-by-parts": {"beta_fast": 32, "beta_slow": 1, "truncate": True, "ramp": "dims"},
    "yarn": {"beta_fast": 32, "beta_slow": 1, "truncate": True, "ramp": "dims"},
    "mixed-ntk": {"exponent": 0.625},
    "llama3": {"low_freq_factor": 1, "high_freq_factor": 4},
}


def pairs_of(source: Case) -> Numbers:
    if "inv_freq" in source:
        return [mpf(f) for f in source["inv_freq"]]
    d = int(source["head_dim"] * source["partial_rotary_factor"])
    return [mpf(source["rope_theta"]) ** (-mpf(2 * i) / d) for i in range(d // 2)]


def clamp(x: mpf) -> mpf:
    return min(max(x, mpf(0)), mpf(1))


def geometric_stretch(f: Numbers, s: mpf) -> Numbers:
    """f_i s^(-2i/(d-2)), which a base of theta s^(d/(d-2)) gives."""
    d = 2 * len(f)
    return [x * s ** (-mpf(2 * i) / (d - 2)) for i, x in enumerate(f)]


def index_at(source: Case, f: Numbers, b: mpf) -> mpf:
    """c(b): d ln(L / (2 pi b)) / (2 ln theta), or read off a table, linear in ln f between pairs that turn."""
    if "rope_theta" in source:
        return 2 * len(f) * mp.log(source["length"] / (2 * mp.pi * b)) / (2 * mp.log(source["rope_theta"]))
    log_wanted = mp.log(2 * mp.pi * b / source["length"])
    known = [(i, mp.log(x)) for i, x in enumerate(f) if x > 0]
    spans = list(pairwise(known))
    inside = [span for span in spans if span[0][1] >= log_wanted >= span[1][1]]
    (i, a), (j, z) = inside[0] if inside else spans[0 if log_wanted > known[0][1] else -1]
    return i + (log_wanted - a) * (j - i) / (z - a)


def kept_share(c: Case, p: Case, f: Numbers) -> Numbers:
    """g_i by the ramp asked for: over the pair index, or over the turns."""
    source, fast, slow = c["source"], mpf(p["beta_fast"]), mpf(p["beta_slow"])
    if p["ramp"] == "turns":
        r = [x * source["length"] / (2 * mp.pi) for x in f]
        return [mpf(x >= fast) if fast == slow else clamp((x - slow) / (fast - slow)) for x in r]
    low, high = index_at(source, f, fast), index_at(source, f, slow)
    if p["truncate"]:
        low, high = mp.floor(low), mp.ceil(high)
    low, high = max(low, mpf(0)), min(high, mpf(2 * len(f) - 1))
    if low == high:
        high += mpf("0.001")
    return [1 - clamp((i - low) / (high - low)) for i in range(len(f))]


def by_parts(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    return [x * (g + (1 - g) / s) for x, g in zip(f, kept_share(c, p, f), strict=True)]


def llama3(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    length, low, high = c["source"]["length"], mpf(p["low_freq_factor"]), mpf(p["high_freq_factor"])

    def scaled(x: mpf) -> mpf:
        if x == 0 or 2 * mp.pi / x > length / low:
            return x / s
        if 2 * mp.pi / x < length / high:
            return x
        t = (length * x / (2 * mp.pi) - low) / (high - low)
        return (1 - t) * x / s + t * x

    return [scaled(x) for x in f]


def mixed(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    b = mpf(p["exponent"])
    a = mp.log(s) / mpf(len(f)) ** b
    return [x * mp.exp(-a * mpf(i + 1) ** b) for i, x in enumerate(f)]


def dynamic(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    length = mpf(c["source"]["length"])
    n = max(mpf(p.get("freeze", c.get("at"))), length)
    return geometric_stretch(f, n / length)


def longrope(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    short = "short_factor" in p and c["at"] <= c["source"]["length"]
    return [x / mpf(e) for x, e in zip(f, p["short_factor" if short else "long_factor"], strict=True)]


def abf(c: Case, p: Case, f: Numbers, s: mpf) -> Numbers:
    return pairs_of(c["source"] | {"rope_theta": p["rope_theta"]})


RAMPS = "dims: g_i = 1 - clamp((i - c(beta_fast)) / (c(beta_slow) - c(beta_fast))), turns: g_i the same in r_i"
FORMULAS: dict[str, tuple[str, Callable[[Case, Case, Numbers, mpf], Numbers]]] = {
    "linear": ("f_i / s", lambda c, p, f, s: [x / s for x in f]),
    "ntk": ("f_i s^(-2i/(d-2))", lambda c, p, f, s: geometric_stretch(f, s)),
    "abf": ("theta'^(-2i/d)", abf),
    "ntk-by-parts": (f"f_i (g_i + (1 - g_i) / s), {RAMPS}", by_parts),
    "yarn": (f"f_i (g_i + (1 - g_i) / s), {RAMPS}, A = 0.1 ln s + 1", by_parts),
    "mixed-ntk": ("f_i exp(-a (i+1)^b), a = ln s / (d/2)^b", mixed),
    "dynamic": ("f_i x^(-2i/(d-2)), x = n / L", dynamic),
    "llama3": ("f_i / s, f_i, linear in turns between", llama3),
    "longrope": ("f_i / e_i, A = sqrt(1 + ln s / ln L)", longrope),
    "attention": ("f_i, A = sqrt(1 + ln s / ln L)", lambda c, p, f, s: f),
    "length": ("f_i", lambda c, p, f, s: f),
}
AUTO = {"yarn": "yarn", "longrope": "logn", "attention": "logn"}  # what `auto` means; none elsewhere


def written_scales(method: str, c: Case) -> tuple[mpf, mpf]:
    """Return the attention factor and the multiplier of the whole score.

    `auto` multiplies the source's own factor; a stated preset or number replaces it. yarn on a model that scales
    the whole score puts its temperature there: (0.1 mscale ln s + 1)^2.
    """
    source, s, preset = c["source"], mpf(c["factor"]), c["attention_factor"]
    softmax = mpf(source.get("softmax_multiplier", 1))
    if method == "yarn" and "mscale" in source and preset == "auto":
        return mpf(source.get("attention_factor", 1)), softmax * (mpf(source["mscale"]) * mp.log(s) / 10 + 1) ** 2
    start = mpf(source.get("attention_factor", 1)) if preset == "auto" else mpf(1)
    preset = AUTO.get(method, "none") if preset == "auto" else preset
    known = {"none": mpf(1), "yarn": mp.log(s) / 10 + 1, "logn": mp.sqrt(1 + mp.log(s) / mp.log(source["length"]))}
    return (start * known[preset] if isinstance(preset, str) else mpf(preset)), softmax


def rounded(x: mpf) -> float:
    return float(mp.nstr(x, DIGITS))


def table(method: str, c: Case) -> Case:
    """Return the case's table by the written formula."""
    params = DEFAULTS.get(method, {}) | c["params"]
    found = FORMULAS[method][1](c, params, pairs_of(c["source"]), mpf(c["factor"]))
    attention_factor, softmax = written_scales(method, c)
    scales = {"attention_factor": rounded(attention_factor), "softmax_multiplier": rounded(softmax)}
    return scales | {"inv_freq": [rounded(x) for x in found]}
