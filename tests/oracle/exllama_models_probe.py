"""Ask whole models of an exllamav3 what their layers rotate by: python exllama_models_probe.py SOURCE, jobs as JSON lines.

A job is a config, an answer {"layers": [a layer that attends, ...]} or {"error"}. The architecture's own classes read the
config and build the model; its attention modules, which need compiled kernels, are stand-ins that keep what they are given.
What comes of their rope settings is asked of the real RoPE class. A layer is {"inv_freq", "amplitude": of cos, "layout",
"window": how many tokens the last position sees, None for all, "scale": of the score, "temperature": what queries grow by with
the position, the beta and the length}; one that does not rotate has no inv_freq.
"""

import hashlib
import importlib
import json
import re
import sys
import tempfile
from pathlib import Path

import peer_stand_ins
import torch

PACKAGE = "exllamav3"
# Files that a processor brings, which the classes of wrappers ask for before anything else.
PROCESSOR = {
    "size": {"shortest_edge": 3136, "longest_edge": 1003520}, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098,
    "min_pixels": 3136, "max_pixels": 1003520, "image_processor_type": "", "image_seq_length": 256, "resample": 3,
    "do_convert_rgb": True, "do_rescale": True, "do_normalize": True, "max_soft_tokens": 280, "pooling_kernel_size": 3,
    "max_image_tokens": 1024, "encoder_patch_size": 16, "downsample_factor": 2, "min_image_tokens": 64, "max_num_patches": 1024,
    "min_tiles": 1, "max_tiles": 4, "tile_size": 512, "use_thumbnail": True, "max_pixels_tolerance": 2.0, "do_image_splitting": True,
}  # fmt: skip
PROCESSORS = (
    "Qwen2VLImageProcessorFast", "Glm4vImageProcessor", "Gemma3ImageProcessor", "PixtralImageProcessorFast", "PixtralImageProcessor",
    "Lfm2VlImageProcessorFast",
)  # fmt: skip
seen = []


class Attention:
    """Stands in for an attention module: it keeps what the architecture hands over."""

    def __init__(self, **given):
        seen.append(given)

    def __getattr__(self, name):
        return peer_stand_ins.attribute(name)


class Model:
    """Stands in for the base of models: a list of modules."""

    def __init__(self, config, **_):
        self.config, self.modules, self.caps = config, [], {}

    def __getattr__(self, name):
        return peer_stand_ins.attribute(name)


def architectures(root):
    """Return the file, the config class and the class of the text model by the name in a config's `architectures`."""
    found = {}
    for file in (root / PACKAGE / "architecture").glob("*.py"):
        for match in re.finditer(r'class (\w+)\(.*\):\n(?:    .*\n)*?    arch_string = "(\w+)"', file.read_text()):
            found[match[2]] = file.stem, match[1]
    return found


def install(root):
    """Import from this source what reads configs and builds models."""
    known = architectures(root)
    real = [f"{PACKAGE}.util.rope", f"{PACKAGE}.util.file", f"{PACKAGE}.model.config"]
    real += [f"{PACKAGE}.architecture.{file}" for file, _ in known.values()]
    kinds = ("Attention", "SlidingAttention", "MLAttention")
    given = {
        f"{PACKAGE}.modules": dict.fromkeys(kinds, Attention), f"{PACKAGE}.model.model": {"Model": Model},
        f"{PACKAGE}.modules.shared_kv_attn": {"SharedKVAttention": Attention},
    }  # fmt: skip
    peer_stand_ins.install(
        root, real, given, ("xformers", "flash_attn", "marisa_trie", "formatron", "kbnf", "pydantic")
    )
    return known


def fingerprint(root):
    """Return a hash of the source files that decide what is answered."""
    folder = root / PACKAGE
    files = [folder / "util/rope.py", folder / "util/file.py", folder / "model/config.py"]
    digest = hashlib.sha256()
    for file in [*files, *sorted((folder / "architecture").glob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read(known, config):
    """Return the architecture's reading of a config, an object of its config class."""
    file, name = known[config["architectures"][0]]
    module = importlib.import_module(f"{PACKAGE}.architecture.{file}")
    for reader in [one for one in vars(module) if re.match("read_.*(vision|process)", one)]:
        setattr(module, reader, lambda *_, **__: peer_stand_ins.stand_in("images")())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        for processor in PROCESSORS:
            stated = {**PROCESSOR, "image_processor_type": processor}
            for name_ in ("preprocessor_config.json", "processor_config.json"):
                Path(folder, name_).write_text(json.dumps({**stated, "image_processor": stated}))
            try:
                return getattr(module, name)(folder)
            except AssertionError as error:  # it wants another one of these
                wrong = error
        raise wrong


def layers(found):
    """Return what each attention module of the text model is given, in the order of the layers."""
    seen.clear()
    found.model_classes["text"](found)
    return [layer(one) for one in seen]


def layer(given):
    settings, window = given.get("rope_settings"), given.get("sliding_window", -1)
    width = given.get("head_dim") or given.get("qk_head_dim")
    scale = given.get("sm_scale")
    told = {
        "window": window + 1 if window is not None and window > 0 else None,
        "scale": width**-0.5 if scale is None else scale,
    }
    if settings is None:
        return told
    rope = importlib.import_module(f"{PACKAGE}.util.rope").RoPE("cpu", settings)
    sin, cos = rope.compute_sincos(torch.tensor([0, 1]))
    beta = rope.llama_4_scaling_beta
    half = settings.rope_style.name == "NEOX"
    chosen = slice(0, sin.shape[-1] // 2) if half else slice(0, None, 2)
    sin, cos = sin[:, chosen].double(), cos[:, chosen].double()
    return told | {
        "inv_freq": torch.atan2(sin[1], cos[1]).tolist(), "amplitude": float(cos[0, 0]),
        "layout": "half" if half else "interleaved", "temperature": [beta, rope.llama_4_scaling_original] if beta else None,
    }  # fmt: skip


def answer(known, config):
    try:
        return {"layers": layers(read(known, config))}
    except Exception as error:  # noqa: BLE001 - whatever stops the program is the answer
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]}


if __name__ == "__main__":
    names = install(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(names, json.loads(line))), flush=True)
