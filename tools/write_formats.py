"""The table of test networks in `docs/formats.md`, written from what the package reads of them.

python tools/write_formats.py
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from unmask.net.config import NetConfig
from unmask.net.dialects.dialect import Given
from unmask.net.loading import inspect
from unmask.net.model import Blueprint

ROOT = Path(__file__).parents[1]
PAGE, FIXTURES = ROOT / "docs" / "formats.md", ROOT / "tests" / "fixtures"
MARKED = re.compile(
    r"(<!-- formats: written by tools/write_formats\.py -->\n).*?(<!-- end -->)", re.DOTALL
)
SIZES = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_width", "mlp_width", "context")
SIZES += ("num_logits", "norm_eps", "rotary_base", "window_base", "causal", "block")
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
    sees = f"blocks of {config.block}" if config.block is not None else sees
    is_next = blueprint.shift or blueprint.paradigm.predicts_next
    return f"{sees}; row i predicts {'i + 1' if is_next else 'i'}"


def write_table(page: str) -> str:
    """The page with its table written anew."""
    header = "| network | dialect | kind | sees; predicts | switches |\n|---|---|---|---|---|\n"
    table = header + "".join(f"{describe(path)}\n" for path in find_networks())
    return MARKED.sub(lambda match: match[1] + table + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(write_table(PAGE.read_text("utf-8")), "utf-8")
    print("written")
