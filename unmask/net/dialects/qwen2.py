"""Qwen2 in `transformers`: Llama's names, with biases on queries, keys and values."""

from unmask.net.dialects.dialect import FieldTable
from unmask.net.dialects.layouts import Layout
from unmask.net.dialects.llama import ABSENT, NAMES, SHAPES

TABLE = FieldTable(
    same=SHAPES, fixed={"hidden_act": "silu", "use_sliding_window": False}, optional=ABSENT
)
DIALECT = Layout("qwen2", "Qwen2ForCausalLM", TABLE, NAMES, {"qkv_bias": True}).make_dialect(
    "qwen2",
    "Qwen2 and Qwen2.5: biases of queries, keys and values; Open-dCoder in their settings",
)
