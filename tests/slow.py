"""Which tests are long, and what for: data for the markers, which tests/conftest.py sets and scripts/test --fast leaves out."""

from __future__ import annotations

from collections.abc import Iterator

# By marker: folders, files and tests of files below tests/. What a marker means stands in pyproject.toml.
LONG: dict[str, tuple[str, ...]] = {
    "oracle": (
        "oracle", "doctor/test_doctor.py::test_both_transformers_read_the_same_from_a_repair",
        "doctor/test_published_errors.py", "exporting/test_tokenizer_parity.py", "importing/test_import_tokenizer_parity.py",
        "verification/test_texts.py::test_with_the_tokenizers_of_real_models_too",
    ),
    "gate": (
        "exporting/test_comparing.py", "exporting/test_export_gate.py", "exporting/test_inexact.py", "cli/test_export_command.py",
        "cli/test_hub_command.py",
        "cli/test_terminal.py::test_export_shows_the_check_after_writing",
    ),
    "kill": (
        "formats/test_transaction_killed.py", "formats_gguf/test_in_place_recovery.py",
        "formats_gguf/test_in_place.py::test_any_edits_come_out_as_a_copy_would", "torture",
        "bad_input/test_bad_gguf.py", "bad_input/test_hostile_sizes.py", "bad_input/test_hostile_texts.py",
        "bad_input/test_limits.py", "bad_input/test_special_files.py",
    ),
    "engine": (
        "verification/test_effects.py", "verification/test_vllm_engine.py", "verification/test_defects.py",
        "verification/test_coverage.py", "verification/test_protocols.py", "verification/test_torch_runner.py",
        "choosing/test_comparing.py",
        "exporting/test_export_families.py", "exporting/test_kquants.py", "exporting/test_shift_safe.py",
        "baking/test_bake_families.py", "baking/test_bake_operations.py", "baking/test_bake_plans.py",
        "baking/test_bake_gguf_parity.py", "cli/test_bake_command.py", "cli/test_verify_command.py",
        "test_gpu_script.py", "test_packaging.py", "identify/test_planted.py",
        "test_docs.py::test_the_worked_example_prints_what_the_tutorial_shows", "test_docs.py::test_the_python_examples_run",
        "test_docs.py::test_the_recording_shows_what_commands_print",
        "test_docs.py::test_the_json_of_export_is_documented", "test_docs.py::test_the_json_of_verify_is_documented",
        "cli/test_terminal.py::test_verify", "verification/test_second_model.py", "verification/test_remade.py",
        "verification/test_yardstick_runner.py", "cli/test_compare_with.py", "verification/test_duration.py",
        "cli/test_terminal.py::test_the_demo_as_quickstart_runs_it",
        "conformance/test_conformance_kit.py", "conformance/test_planted_engines.py",
        "lab/test_lab.py::test_a_run_that_was_cut_ends_in_the_same_weights",
        "test_model_index.py::test_verify_writes_what_it_measured",
        "choosing/test_tune.py", "choosing/test_tune_demo.py::test_the_record_is_of_this_code", "verification/test_scaled.py",
    ),
    "grid": ("test_corpus.py", "test_gguf_architectures.py"),
}  # fmt: skip


def markers(test: str) -> Iterator[str]:
    """Yield the markers of a test by its name below tests/, such as `cli/test_main.py::test_help[x]`."""
    parts = test.partition("[")[0].replace("::", "/").split("/")
    names = {"/".join(parts[:length]) for length in range(1, len(parts) + 1)}
    for marker, places in LONG.items():
        if not names.isdisjoint(place.replace("::", "/") for place in places):
            yield marker
