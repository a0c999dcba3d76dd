"""The list of rules, in the order of the report. To add one, write a function and add a line here."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.doctor import configs, gguf_keys, gguf_types, lengths, sources
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Rule
from ropetool.doctor.older_releases import RULE, older_release
from ropetool.doctor.opening import UNREADABLE, ambiguous, invalid, pointers, stops, unknown
from ropetool.doctor.readings import of_readings
from ropetool.errors import UnknownName, did_you_mean

HF, GGUF = "hf", "gguf"
BOTH = (HF, GGUF)


def _of_readings(name: str, severity: str, summary: str, why: str) -> Rule:
    return Rule(name, severity, summary, why, (HF,), of_readings(name))


RULES = (
    Rule(
        UNREADABLE, ERROR, "a file that cannot be read as a checkpoint, or a Git LFS pointer in place of a file",
        "Runtimes do not load it, or load a different model than the files describe.", BOTH, pointers,
    ),
    Rule(
        "invalid-value", ERROR, "a value that is not valid for RoPE",
        "A runtime stops with an error, or uses a default instead.", BOTH, invalid,
    ),
    Rule(
        "ambiguous", ERROR, "keys of two styles or spellings that contradict each other",
        "Each runtime reads one of them, so the same file is two models.", BOTH, ambiguous,
    ),
    Rule(
        "number-as-text", ERROR, "a number in quotes among the rope keys",
        "Most runtimes stop. Others compare the text with numbers.", (HF,), configs.number_as_text,
    ),
    Rule(
        "key-type", ERROR, "a GGUF key with a type that llama.cpp does not read",
        "llama.cpp does not convert types: it refuses the file.", (GGUF,), gguf_types.key_type,
    ),
    Rule(
        "not-loaded", ERROR, "the format's own runtime stops",
        "transformers (directories) or llama.cpp (GGUF files) does not run the model at all.", BOTH, stops,
    ),
    Rule(
        "source-table", ERROR, "a RoPE table that differs from the source checkpoint",
        "A conversion lost a scaling or a base: short texts are fluent, long texts fail.", BOTH, sources.source_table,
    ),
    Rule(
        "rope-freqs", ERROR, "a GGUF file of Llama 3.1, 3.2 or 3.3 without rope_freqs.weight",
        "Converters before July 2024 did not write the divisors of the slow pairs; beyond 8192 tokens the text falls apart. An "
        "error if the file names its model, a warning if only base, context and vocabulary match.",
        (GGUF,), gguf_keys.rope_freqs_missing,
    ),
    Rule(
        "double-scaling", ERROR, "longrope lists together with a factor",
        "llama.cpp divides every frequency twice.", (GGUF,), gguf_keys.double_scaling,
    ),
    Rule(
        "rotation-off", WARNING, "a flag that switches rotation off",
        "For Granite, rope.scaling.finetuned false means a model without positions.", (GGUF,), gguf_keys.rotation_off,
    ),
    _of_readings(
        "config-style", ERROR, "rope keys in a config style that a runtime does not read",
        "transformers 5 writes rope_parameters. transformers 4.57 ignores it without a warning, and uses the default base of the "
        "class, mostly 10000, without scaling. With both styles in the file, both read the same table. An error if a runtime "
        "misreads it silently, a warning if it stops.",
    ),
    Rule(
        "attention-factor", ERROR, "an attention factor that a runtime drops",
        "The scores of the rotated channels get a different multiplier: attention is flatter or sharper everywhere. An error in a "
        "GGUF file whose key llama.cpp ignores, a warning for other runtimes.",
        BOTH, lambda case: gguf_keys.lost_factor(case) if case.gguf else of_readings("attention-factor")(case),
    ),
    _of_readings(
        "softmax-scale", WARNING, "DeepSeek's mscale_all_dim, or another multiplier of the score, that a runtime drops",
        "The whole score gets a different multiplier.",
    ),
    _of_readings(
        "truncate", WARNING, "a truncate key that a runtime does not read",
        "The runtime rounds the ends of YaRN's ramp, but the model was trained without rounding.",
    ),
    _of_readings(
        "scaling-ignored", WARNING, "a scaling that a runtime ignores",
        "The runtime uses the unscaled table, which fails beyond the original length.",
    ),
    _of_readings(
        "length-rule", WARNING, "a table that depends on the length, but that a runtime reads as one table",
        "With longrope and dynamic scaling, short texts get the long table, or long texts the short table.",
    ),
    _of_readings(
        "other-table", WARNING, "different frequencies, channels or layers in a runtime, for a reason that no other rule covers",
        "The model sees distances as longer or shorter than they are.",
    ),
    _of_readings(
        "temperature", WARNING, "a factor that grows with the position, but that a runtime drops",
        "Attention far into a text is flatter or sharper than in training.",
    ),
    Rule(
        "sliding-window", WARNING, "a sliding window that a runtime ignores",
        "Layers attend further back than in training: right up to the window, unknown beyond.",
        BOTH, lambda case: gguf_keys.window_unread(case) if case.gguf else of_readings("sliding-window")(case),
    ),
    _of_readings(
        "no-gguf", WARNING, "RoPE settings that a GGUF file cannot store",
        "The stock converter writes a file anyway, and llama.cpp computes something else from it.",
    ),
    Rule(
        "length-ratio", ERROR, "a context length that differs from the original length times the factor",
        "Too long: the scaling does not reach the last positions. Too short (a warning): runtimes stop too early, and transformers "
        "before 4.57 uses the ratio of the lengths as the factor.", BOTH, lengths.length_ratio,
    ),
    Rule(
        "original-length", ERROR, "two different original lengths, or YaRN without one",
        "Each runtime reads one of the two. Without any (a warning), YaRN's ramp depends on the context length: if you raise that "
        "length, every pair changes.", BOTH,
        lengths.original_length,
    ),
    Rule(
        "source-context", WARNING, "a context length that differs from the source checkpoint",
        "Servers and user interfaces limit the context to the length in the file.", BOTH, sources.source_context,
    ),
    _of_readings(
        "context-length", WARNING, "a runtime that uses a different context length",
        "It multiplies the context length by the factor, or stops at the original length.",
    ),
    Rule(
        "mscale-pair", WARNING, "YaRN with only one of mscale and mscale_all_dim, which changes the attention factor",
        "transformers reads the two keys only together, DeepSeek's code reads each. A note if both are set and differ.",
        (HF,), configs.mscale_pair,
    ),
    Rule(
        "base-missing", WARNING, "a GGUF file without rope.freq_base",
        "llama.cpp uses 10000: right for Llama 2, wrong for most later models. A note up to 8192 tokens of context.",
        (GGUF,), gguf_keys.base_missing,
    ),
    Rule(
        "unread-key", WARNING, "a key about positions that the format's own runtime does not read",
        "The key has no effect: it is misspelt, belongs to a different architecture, or is for other runtimes (a note).",
        BOTH, lambda case: gguf_keys.unread_key(case) if case.gguf else configs.unread_key(case),
    ),
    Rule(
        "tokenizer-limit", WARNING, "a tokenizer whose model_max_length is below the context",
        "With truncation on, the tokenizer cuts longer texts. Otherwise it prints a warning.", (HF,), configs.tokenizer_limit,
    ),
    _of_readings(
        "runtime-stops", NOTE, "another runtime stops with an error",
        "The runtime reports the error and does not run, so nothing goes wrong silently.",
    ),
    Rule(
        RULE, NOTE, "keys that older releases of a runtime read differently",
        "The newest release computes the table of the file. A user with an older release gets a different model.", (HF,), older_release,
    ),
    Rule(
        "context-shift", NOTE, "an attention factor that llama.cpp's context shift multiplies again",
        "Only with --context-shift or --cache-reuse: cached keys grow at every shift.", (GGUF,), gguf_keys.context_shift,
    ),
    Rule(
        "allocated-context", NOTE, "a longrope table that llama.cpp selects by the allocated context",
        "A large -c costs quality on short texts.", (GGUF,), gguf_keys.allocated_context,
    ),
    Rule(
        "unknown-family", NOTE, "an unknown model type or architecture",
        "ropetool cannot report how runtimes read it.", BOTH, unknown,
    ),
)  # fmt: skip


def chosen(only: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules with these names, or all rules if there are no names.

    Raises: UnknownName.
    """
    requested, known = tuple(only), {rule.name: rule for rule in RULES}
    for name in requested:
        if name not in known:
            near = did_you_mean(name, known)
            raise UnknownName(f"no rule is called {name[:40]!r}{near}", where="--only", try_="ropetool doctor --rules")
    return tuple(rule for rule in RULES if not requested or rule.name in requested)
