"""The rules, in the order in which what they find is shown. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.doctor import configs, gguf_keys, gguf_types, lengths, sources
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Rule
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
        "invalid-value", ERROR, "a value that no rotation follows from",
        "A runtime stops at it, or computes with a default in its place.", BOTH, invalid,
    ),
    Rule(
        "ambiguous", ERROR, "keys of two styles or spellings that contradict each other",
        "Each runtime takes one of them: the same file is two models.", BOTH, ambiguous,
    ),
    Rule(
        "number-as-text", ERROR, "a number of the rope keys in quotes",
        "Most readers stop; others compare the text with numbers.", (HF,), configs.number_as_text,
    ),
    Rule(
        "key-type", ERROR, "a GGUF key whose type is not the one that llama.cpp takes",
        "llama.cpp converts nothing: it refuses the file.", (GGUF,), gguf_types.key_type,
    ),
    Rule(
        "not-loaded", ERROR, "the runtime that the format is made for stops",
        "transformers, or llama.cpp, does not run the file at all.", BOTH, stops,
    ),
    Rule(
        "source-table", ERROR, "other positions than the checkpoint that it was made from",
        "A conversion lost a scaling or a base: fluent at first, wrong with growing distance.", BOTH, sources.source_table,
    ),
    Rule(
        "rope-freqs", ERROR, "a GGUF file of Llama 3.1, 3.2 or 3.3 without rope_freqs.weight",
        "Converters before July 2024 left the divisors of its slow pairs out; beyond 8192 tokens the text falls apart. An error "
        "where the file says which model it is, a warning where base, context and vocabulary say so.",
        (GGUF,), gguf_keys.rope_freqs_missing,
    ),
    Rule(
        "double-scaling", ERROR, "longrope lists and a factor besides",
        "llama.cpp divides every frequency twice.", (GGUF,), gguf_keys.double_scaling,
    ),
    Rule(
        "rotation-off", WARNING, "a flag that turns rotation off",
        "For Granite, rope.scaling.finetuned false means a model without positions.", (GGUF,), gguf_keys.rotation_off,
    ),
    _of_readings(
        "config-style", ERROR, "one config style, where a runtime reads the other",
        "rope_parameters is transformers 5's: transformers 4.57 takes the class's own base, 10000 mostly, and no scaling, without "
        "a word. The same table in both styles is read alike by both. An error where a runtime goes wrong in silence, a "
        "warning where it stops.",
    ),
    Rule(
        "attention-factor", ERROR, "an attention factor that a runtime drops",
        "Scores of the rotated channels are multiplied by another number: attention is flatter or sharper everywhere. An "
        "error in a GGUF file, where the factor stands in a key that llama.cpp discards; a warning of other runtimes.",
        BOTH, lambda case: gguf_keys.lost_factor(case) if case.gguf else of_readings("attention-factor")(case),
    ),
    _of_readings(
        "softmax-scale", WARNING, "DeepSeek's mscale_all_dim, or another multiplier of the score, that a runtime drops",
        "The whole score is multiplied by another number.",
    ),
    _of_readings(
        "truncate", WARNING, "truncate that a runtime does not read",
        "The ends of YaRN's ramp are rounded where the model was trained with them as they are.",
    ),
    _of_readings(
        "scaling-ignored", WARNING, "a scaling that a runtime leaves out",
        "It rotates by the table before the extension: lost beyond the original length.",
    ),
    _of_readings(
        "length-rule", WARNING, "a table that follows the length, read as one table",
        "longrope and dynamic scaling: short texts get the long table, or long ones the short table.",
    ),
    _of_readings(
        "other-table", WARNING, "other frequencies, channels or layers in a runtime, for a reason of its own",
        "Distances look longer or shorter there than they are.",
    ),
    _of_readings(
        "temperature", WARNING, "a factor that grows with the position, which a runtime drops",
        "Attention far into a text is flatter or sharper than in training.",
    ),
    Rule(
        "sliding-window", WARNING, "a sliding window that a runtime ignores",
        "Layers look further back than in training: right up to the window, unknown beyond.",
        BOTH, lambda case: gguf_keys.window_unread(case) if case.gguf else of_readings("sliding-window")(case),
    ),
    _of_readings(
        "no-gguf", WARNING, "positions that no GGUF file can hold",
        "The stock converter writes a file all the same, which computes something else in llama.cpp.",
    ),
    Rule(
        "length-ratio", ERROR, "a stated context that contradicts length before scaling times factor",
        "Too long: positions that the scaling does not reach. Too short (a warning): runtimes stop before the extension begins, and "
        "transformers before 4.57 takes the ratio of the lengths for the factor.", BOTH, lengths.length_ratio,
    ),
    Rule(
        "original-length", ERROR, "two lengths before scaling, or YaRN without one",
        "Readers take one of the two. Without any (a warning) the ramp is counted in the stated context, which moves every "
        "pair once that is raised.", BOTH,
        lengths.original_length,
    ),
    Rule(
        "source-context", WARNING, "another stated context than the checkpoint that it was made from",
        "Servers and user interfaces cap at what the file states.", BOTH, sources.source_context,
    ),
    _of_readings(
        "context-length", WARNING, "a runtime that takes another context than the stated one",
        "It multiplies the stated context by the factor, or stops at the length before scaling.",
    ),
    Rule(
        "mscale-pair", WARNING, "YaRN with only one of mscale and mscale_all_dim, which changes the attention factor",
        "transformers reads the two only together, and DeepSeek's code reads each. A note if both are set and differ.",
        (HF,), configs.mscale_pair,
    ),
    Rule(
        "base-missing", WARNING, "a GGUF file without rope.freq_base",
        "llama.cpp takes 10000: right for Llama 2, wrong for most models since. A note up to 8192 tokens of context.",
        (GGUF,), gguf_keys.base_missing,
    ),
    Rule(
        "unread-key", WARNING, "a key about positions that the format's own runtime never looks at",
        "What it says is not computed: a misspelt key, one of another architecture, or one for other readers (a note).",
        BOTH, lambda case: gguf_keys.unread_key(case) if case.gguf else configs.unread_key(case),
    ),
    Rule(
        "tokenizer-limit", WARNING, "a tokenizer whose model_max_length is below the context",
        "Texts are cut where truncation is on, and warned about where it is not.", (HF,), configs.tokenizer_limit,
    ),
    _of_readings(
        "runtime-stops", NOTE, "another runtime stops with an error", "Nothing goes wrong in silence: it says so and does not run.",
    ),
    Rule(
        "context-shift", NOTE, "an attention factor that llama.cpp's context shift multiplies again",
        "Only with --context-shift or --cache-reuse: cached keys grow at every shift.", (GGUF,), gguf_keys.context_shift,
    ),
    Rule(
        "allocated-context", NOTE, "longrope's table is chosen by the allocated context",
        "A large -c costs quality on short texts.", (GGUF,), gguf_keys.allocated_context,
    ),
    Rule(
        "unknown-family", NOTE, "a model type or architecture of which nothing is known",
        "Nothing is said of what runtimes make of it.", BOTH, unknown,
    ),
)  # fmt: skip


def chosen(only: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules of these names, all where none is given.

    Raises: UnknownName.
    """
    wanted, known = tuple(only), {rule.name: rule for rule in RULES}
    for name in wanted:
        if name not in known:
            near = did_you_mean(name, known)
            raise UnknownName(f"no rule is called {name[:40]!r}{near}", where="--only", try_="ropetool doctor --rules")
    return tuple(rule for rule in RULES if not wanted or rule.name in wanted)
