"""The tables in `docs/formats.md`: of dialects, from what they say of themselves and what is known
by name, each with its test; and of test networks, from what the package reads of them.

python tools/write_formats.py
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from unmask.net.config import NetConfig
from unmask.net.dialects import DIALECTS
from unmask.net.dialects.dialect import Given
from unmask.net.known import KNOWN, group_unconfirmed
from unmask.net.loading import inspect
from unmask.net.model import Blueprint

ROOT = Path(__file__).parents[1]
PAGE, FIXTURES = ROOT / "docs" / "formats.md", ROOT / "tests" / "fixtures"
MARKED = re.compile(
    r"(<!-- (?P<what>\w+): written by tools/write_formats\.py -->\n).*?(<!-- end -->)", re.DOTALL
)
PARITY = "tests/parity/"
AGREES = f"{PARITY}test_transformers.py::test_logits_agree"
TESTS = {
    "unmask": ["tests/net/test_saving.py::test_save_load_save_gives_the_same_bytes"],
    "smdm": [f"{PARITY}test_fixtures.py::test_smdm"],
    "llada": [f"{PARITY}test_fixtures.py::test_llada_and_dream"],
    "dream": [f"{PARITY}test_fixtures.py::test_llada_and_dream"],
    "llama": [AGREES, f"{PARITY}test_formats.py::test_what_is_known_by_name"],
    "qwen2": [AGREES, f"{PARITY}test_formats.py::test_a_causal_model_with_a_mask_is_questioned"],
    "qwen3": [AGREES, f"{PARITY}test_formats.py::test_settings_of_a_causal_model"],
    "gpt2": [AGREES],
    "gpt_neox": [AGREES],
    "qwen3_moe": [AGREES],
    "ministral3": [AGREES],
    "nemotron_labs_diffusion": [
        f"{PARITY}test_nemotron.py::test_the_causal_reading",
        f"{PARITY}test_nemotron.py::test_the_open_block",
        f"{PARITY}test_nemotron.py::test_greedy_texts",
    ],
    "modernbert": [f"{PARITY}test_encoders.py::test_logits_agree"],
    "bert": [f"{PARITY}test_encoders.py::test_logits_agree"],
    "illada": [f"{PARITY}test_formats.py::test_illada"],
    "fast_dllm": [
        f"{PARITY}test_formats.py::test_logits",
        f"{PARITY}test_samplers.py::test_fast_dllm",
    ],
    "sdar": [f"{PARITY}test_formats.py::test_logits", f"{PARITY}test_samplers.py::test_sdar"],
    "a2d": [f"{PARITY}test_formats.py::test_logits"],
    "llada_moe": [f"{PARITY}test_formats.py::test_logits"],
    "llada2_moe": [f"{PARITY}test_formats.py::test_logits"],
    "rnd1": [f"{PARITY}test_formats.py::test_logits"],
    "sdar_moe": [f"{PARITY}test_formats.py::test_mixtures_in_qwen3s_layout"],
    "mdlm": [f"{PARITY}test_ddit.py::test_logits"],
    "bd3lm": [f"{PARITY}test_ddit.py::test_bd3lm_pairs"],
    "radd": [f"{PARITY}test_ddit.py::test_round_trip_key_for_key"],
    "sedd": [f"{PARITY}test_ddit.py::test_sedd_scores"],
    "duo": [f"{PARITY}test_ddit.py::test_posteriors"],
    "udlm": [f"{PARITY}test_ddit.py::test_classes"],
    "gidd": [f"{PARITY}test_ddit.py::test_hybrid_noise_of_gidd"],
}
"""By dialect, what holds its logits to the peer's own; in the order of the table."""
SIZES = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_width", "mlp_width", "context")
SIZES += ("num_logits", "norm_eps", "rotary_base", "window_base", "causal", "block", "open_block")
SIZES += ("expert_width", "shared_width", "adaln", "window", "norm_bias")
"""Fields of a network that are no switches, or are said otherwise."""


def find_networks() -> Iterator[Path]:
    """The folders of fixtures, or the files of a folder that holds several."""
    for folder in sorted(FIXTURES.iterdir()):
        if (folder / "model.safetensors").is_file():
            yield folder
        elif folder.is_dir():
            files = sorted(folder.glob("*.safetensors"))
            yield from (file for file in files if not file.name.startswith("expected"))


def describe_switches(config: NetConfig) -> str:
    """What is not as in Llama, such as `qk_norm`, `experts=8`."""
    switches = [name for name in ("adaln", "window") if getattr(config, name) is not None]
    switches += ["shared expert"] if config.shared_width is not None else []
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name not in SIZES and value != each.default:
            switches.append(each.name if value is True else f"{each.name}={value}")
    return ", ".join(f"`{switch}`" for switch in switches)


def describe(path: Path) -> str:
    """The row of one network."""
    blueprint, dialect, _ = inspect(path, given=Given(mask=0))
    cells = [f"`{path.relative_to(ROOT)}`", f"`{dialect.name}`", blueprint.kind]
    cells += [describe_view(blueprint), describe_switches(blueprint.config)]
    return f"| {' | '.join(cells)} |"


def describe_view(blueprint: Blueprint) -> str:
    """What a position sees, and what a row predicts."""
    config = blueprint.config
    sees = "earlier positions" if config.causal else "everything"
    if config.block is not None:
        sees = f"{'an open block' if config.open_block else 'blocks'} of {config.block}"
    is_next = blueprint.shift or blueprint.paradigm.predicts_next
    return f"{sees}; row i predicts {'i + 1' if is_next else 'i'}"


def describe_dialect(name: str, tests: list[str]) -> str:
    """The row of one dialect."""
    known = {short: model for short, model in KNOWN.items() if model.dialect == name}
    doubts = [
        f"{', '.join(f'`{each}`' for each in names)}: {what}"
        for what, names in group_unconfirmed().items()
        if any(each in known for each in names)
    ]
    cells = [f"`{name}`", DIALECTS[name].about, ", ".join(f"`{short}`" for short in known)]
    cells += ["; ".join(doubts), ", ".join(f"`{test}`" for test in tests)]
    return f"| {' | '.join(cells)} |"


def write_tables(page: str) -> str:
    """The page with its tables written anew."""
    tables = {
        "dialects": [
            "| dialect | what it has | known by name | not confirmed | tests |",
            "|---|---|---|---|---|",
            *(describe_dialect(name, tests) for name, tests in TESTS.items()),
        ],
        "networks": [
            "| network | dialect | kind | sees; predicts | switches |",
            "|---|---|---|---|---|",
            *map(describe, find_networks()),
        ],
    }
    return MARKED.sub(
        lambda match: "\n".join((match[1].rstrip(), *tables[match["what"]], match[3])), page
    )


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text("utf-8")), "utf-8")
    print("written")
