"""A training plan as a table in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unmask.base.units import format_bytes, format_number
from unmask.net.counts import count_parameters
from unmask.training.plan import Plan


def show_plan(console: Console, plan: Plan) -> None:
    """What would be trained: data, parameters, operations and memory."""
    config, flops = plan.config, plan.flops_a_token
    parameters = count_parameters(config)
    steps = plan.steps
    total = "as many as the minutes allow" if steps is None else f"{steps:,}"
    table = Table(show_header=False, title="what would be trained")
    rows = {
        "data": f"{plan.label}: {plan.rows:,} rows",
        "layers × width × mlp": f"{config.layers} × {config.width} × {config.mlp_width}",
        "vocabulary, logits": f"{config.vocab_size:,}, {config.logit_rows:,}",
        "parameters": f"{parameters.total:,}, {parameters.layers:,} of them in the layers",
        "steps": f"{total} of {plan.tokens_a_step:,} tokens",
        "training, a token": f"{format_number(flops)}FLOP",
        "training, a step": f"{format_number(flops * plan.tokens_a_step)}FLOP",
    }
    if steps is not None:
        rows["training, all"] = f"{format_number(flops * plan.tokens_a_step * steps)}FLOP"
    for what, size in plan.memory.items():
        rows[f"memory for {what}, about"] = format_bytes(size)
    free = "" if plan.free is None else f" of {format_bytes(plan.free)} free"
    rows["memory, about"] = f"{format_bytes(sum(plan.memory.values()))}{free} on {plan.device}"
    for label, value in rows.items():
        table.add_row(label, escape(value))
    console.print(table)
