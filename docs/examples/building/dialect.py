"""A dialect: checkpoints of a lab that writes Llama's network under names of its own."""

from dataclasses import replace

from unmask.net.dialects.dialect import FieldTable
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.llama import NAMES

# Our setting: theirs; and what their network has that is always so.
TABLE = FieldTable(
    same={"vocab_size": "num_words", "width": "dim", "layers": "depth", "heads": "num_heads",
          "mlp_width": "ff_dim", "context": "max_length", "norm_eps": "eps"},
    fixed={"activation": "silu"},
)  # fmt: skip


def map_tensors(config):
    """Which tensor of theirs fills which of ours: Llama's names, `backbone` in place of `model`."""
    for each in NAMES.map_tensors(config):
        yield replace(each, theirs=each.theirs.replace("model.", "backbone."))


DIALECT = Layout("ourlm", "OurLMForCausalLM", TABLE, NAMES).make_dialect(
    "ourlm", "a lab's own networks", map_tensors=map_tensors
)
