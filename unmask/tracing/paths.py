"""`unmask.patch_paths`: what a state gives to the answer by way of single receivers.

Path patching (Wang et al. 2022, arXiv 2211.00593; Goldowsky-Dill et al. 2023, arXiv 2304.05969). A
sender, such as the MLP's output at the subject in a layer, is that of the clean run; the rest of
the corrupted run is kept. What the sender changes reaches its receivers along the residual stream
alone: attention, MLPs or heads at some positions and layers, or the final stream. All others read
the stream without the change, and are changed by what the receivers write only.

With everything a receiver, this is restoring the sender; with nothing, the corrupted run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.base.config import LARGEST, adjust, check_arguments, list_settings
from unmask.base.errors import UserError, suggest
from unmask.data.facts import Fact, FactTexts, as_fact
from unmask.net.blocks import Block, ParallelBlock
from unmask.net.model import Model
from unmask.net.taps import is_wanted
from unmask.tracing.clean_run import CleanRun, generate
from unmask.tracing.knockout import ROWS, UNUSED, ask_step, find_rows
from unmask.tracing.metrics import Metric, score_cells
from unmask.tracing.question import Question
from unmask.tracing.record import Activations
from unmask.tracing.settings import BY_CHAIN, Tracing
from unmask.tracing.sweep import DEFAULT_MEMORY, count_batch_bytes
from unmask.tracing.tokens import choose_source, group_factors, record_factors, split_factors

SENDERS, RECEIVERS = ("resid", "mlp", "attn", "attn_z"), ("attn", "mlp", "attn_z")
FINAL, EVERYTHING = "final", "everything"


@dataclass(frozen=True)
class PathGrid:
    """The answer's log-probabilities with the sender's change at each receiver alone."""

    receivers: tuple[Any, ...]
    logp: Float[Tensor, "receiver S K A"]
    clean_logp: Float[Tensor, "1 K A"]
    corrupted_logp: Float[Tensor, "S K A"]

    def values(self, metric: str | Metric = "logp_per_token") -> Float[Tensor, "receiver"]:
        """The metric for each receiver, mean over noise samples."""
        return score_cells(metric, self.logp, self.clean_logp, self.corrupted_logp).mean(-1)

    def ends(self, metric: str | Metric = "logp_per_token") -> tuple[float, float]:
        """The metric with nothing hidden, and with the subject hidden, mean over noise samples."""
        ends = self.clean_logp, self.corrupted_logp
        clean, corrupted = (score_cells(metric, logp, *ends).mean().item() for logp in ends)
        return clean, corrupted

    def effects(self, metric: str | Metric = "logp_per_token") -> Float[Tensor, "receiver"]:
        """What each receiver gives back of what the corruption took."""
        return self.values(metric) - self.ends(metric)[1]


@list_settings(Tracing, UNUSED)
@torch.inference_mode()
@check_arguments(leave_out=("fact", "sender", "receivers"), memory=(1, LARGEST))
def patch_paths(
    model: Model,
    fact: Fact | FactTexts | CleanRun,
    sender: Any,
    receivers: Sequence[Any],
    settings: Tracing | None = None,
    *,
    step: str | int = "first",
    memory: int | None = None,
    **changes: Any,
) -> PathGrid:
    """What a sender gives back to the answer through each receiver, all other paths kept as they
    are in the corrupted run.

    Args:
        model: Masked or causal.
        fact: A fact or its (subject, object, prompt), or a clean generation that was kept.
        sender: (role, layer, part): positions by role (`unmask.tracing.knockout.ROWS`, or all), the
            part resid (layer -1: the embeddings), mlp, attn, or attn_z with a head's number as
            fourth.
        receivers: (role, layer, part) each, of the parts attn, mlp, or attn_z with a head; "final",
            the stream that logits are read from; "everything"; or lists of them taken together.
        settings: All of the settings below as one object; those about what is restored are not
            used. By default answers are scored by the chain rule.
        step: The denoising step whose state is asked: first, t1, t2 or a number.
        memory: Bytes to use beside the weights.
        changes: Single settings by name, which come before those of `settings`.

    Keyword Args:
        {settings}

    >>> model = unmask.load("reversal-mdm", device="cpu")
    >>> fact = unmask.read_facts("facts.csv")[0]
    >>> receivers = [("answer", layer, "attn") for layer in (2, 3)]
    >>> paths = unmask.patch_paths(model, fact, ("subject", 1, "mlp"), receivers, any_answer=True)
    >>> paths.effects("p").shape
    torch.Size([2])
    """
    settings = adjust(
        patch_paths, Tracing, BY_CHAIN if settings is None else settings, changes, UNUSED
    )
    sender = _check_node(model, sender, SENDERS, "sender")
    if isinstance(receivers, str | tuple) or not isinstance(receivers, Sequence) or not receivers:
        raise UserError(
            f"the receivers are {receivers!r:.60}: expected a list, such as "
            "[('answer', 3, 'attn'), 'final']."
        )
    wanted = [_check_receiver(model, receiver) for receiver in receivers]
    check_blocks(model)
    clean = fact if isinstance(fact, CleanRun) else generate(model, as_fact(fact), settings)
    number = clean.find_step(step)
    with model.net.taps.in_step(number):
        return patch_state(ask_step(clean, number, settings), sender, wanted, memory)


def check_blocks(model: Model) -> None:
    """Raise where what attention and MLP give is not simply added to the stream."""
    adds = (Block.after_attention, ParallelBlock.after_attention)
    for block in map(model.net.block, range(model.net.config.layers)):
        is_plain = type(block).after_mlp is Block.after_mlp
        if not is_plain or type(block).after_attention not in adds:
            raise UserError(
                f"the block {type(block).__name__} does not add what attention and MLP give to the "
                "stream: paths along the stream are for blocks that do."
            )


def patch_state(
    question: Question, sender: Any, receivers: Sequence[Sequence[Any]], memory: int | None = None
) -> PathGrid:
    """The path grid of one state; each receiver is a list of those taken together."""
    return patch_senders(question, [(sender, receivers)], memory)[0]


Paths = tuple[Any, Sequence[Sequence[Any]]]
"""A sender and its receivers."""


def patch_senders(
    question: Question, paths: Sequence[Paths], memory: int | None = None
) -> list[PathGrid]:
    """The path grids of several senders, which share one clean and one corrupted run."""
    answer = tuple(question.answer)
    runs = [_run(group, answer, paths, memory) for group in group_factors(question, memory)]
    clean, corrupted = (torch.cat([run[i] for run in runs], -1).cpu() for i in (1, 2))
    grids = []
    for number, (_, receivers) in enumerate(paths):
        logp = torch.cat([run[0][number] for run in runs], -1).cpu()
        grids.append(PathGrid(tuple(map(tuple, receivers)), logp, clean, corrupted))
    return grids


def _check_node(model: Model, node: Any, parts: Sequence[str], what: str) -> tuple:
    """(rows, layer, part) or (rows, layer, "attn_z", head), checked."""
    config = model.net.config
    if not isinstance(node, tuple | list) or len(node) not in (3, 4):
        raise UserError(
            f"the {what} is {node!r:.60}: expected (role, layer, part), such as "
            "('subject', 3, 'mlp')."
        )
    rows, layer, part, *head = node
    roles = {role: None for role in (*ROWS, "all") if role != "others"}
    if rows not in roles:
        raise UserError(f"the {what} names the role {rows!r}: {suggest(str(rows), roles)}")
    if part not in parts:
        raise UserError(f"the {what} names the part {part!r}: {suggest(str(part), parts)}")
    lowest = -1 if part == "resid" else 0  # the embeddings
    if type(layer) is not int or not lowest <= layer < config.layers:
        raise UserError(
            f"the {what} names layer {layer!r}: expected {lowest} to {config.layers - 1}."
        )
    is_head = len(head) == 1 and type(head[0]) is int and 0 <= head[0] < config.heads
    if bool(head) != (part == "attn_z") or (head and not is_head):
        raise UserError(
            f"the {what} is {node!r:.60}: expected a head from 0 to {config.heads - 1} after "
            "'attn_z', and after no other part."
        )
    return tuple(node)


def _check_receiver(model: Model, receiver: Any) -> list[Any]:
    together = receiver if isinstance(receiver, list) else [receiver]
    return [
        each
        if isinstance(each, str) and each in (FINAL, EVERYTHING)
        else _check_node(model, each, RECEIVERS, "receiver")
        for each in together
    ]


@dataclass(frozen=True)
class _Reached:
    """Which parts read the stream with the sender's change, in each cell and sample."""

    heads: Bool[Tensor, "B layers L H"]
    mlp: Bool[Tensor, "B layers L"]
    final: Bool[Tensor, "B"]


def _mark(
    question: Question, rows: Mapping[str, Bool[Tensor, "S L"]], receivers: Sequence[Sequence[Any]]
) -> _Reached:
    """Cells of a receiver lie side by side, one for each sample."""
    config, role = question.model.net.config, rows["subject"]
    # 1. Nothing is reached: [C, S, layers, L], for heads [C, S, layers, L, H], for the end [C, S].
    shape = (len(receivers), len(role), config.layers, question.length)
    heads = torch.zeros(*shape, config.heads, dtype=torch.bool, device=role.device)
    mlp, final = heads.new_zeros(shape), heads.new_zeros(shape[:2])
    # 2. What each of a cell's receivers is, at the rows [S, L] of its role.
    for i, together in enumerate(receivers):
        for receiver in together:
            if receiver in (FINAL, EVERYTHING):
                final[i] = True
                if receiver == EVERYTHING:
                    heads[i], mlp[i] = True, True
                continue
            name, layer, part, *head = receiver
            if part == "mlp":
                mlp[i, :, layer] |= rows[name]
            elif part == "attn":
                heads[i, :, layer] |= rows[name][..., None]
            else:
                heads[i, :, layer, :, head[0]] |= rows[name]
    # 3. Cells and samples as rows, B = C x S.
    return _Reached(*(marks.flatten(0, 1) for marks in (heads, mlp, final)))


def _find_change(
    question: Question,
    sender: Any,
    is_sender: Bool[Tensor, "S L"],
    base: Activations,
    source: Activations,
) -> Float[Tensor, "S L D"]:
    """What the sender adds to the stream in the source run minus that in the base run."""
    _, layer, part, *head = sender

    def pick(kept: Tensor) -> Tensor:
        """At our positions; another text may have them elsewhere."""
        return kept if source.moved is None else kept[:, source.moved]

    if part == "attn_z":
        z = base.attn_z[layer].clone()
        z[:, :, head[0]] = pick(source.attn_z[layer])[:, :, head[0]]
        net = question.model.net
        with net.taps.on_tokens(base.tokens), net.taps.in_rows((0,)):
            attn = net.taps.at(f"layers.{layer}.")("attn_out", net.block(layer).attn_out(z))
        change = attn - base.attn[layer]
    elif part == "resid":
        change = pick(source.resid(layer)) - base.resid(layer)
    else:
        theirs, ours = ((run.mlp if part == "mlp" else run.attn)[layer] for run in (source, base))
        change = pick(theirs) - ours
    return change * is_sender[..., None]


def _run(
    factors: Sequence[Question], answer: Sequence[int], paths: Sequence[Paths], memory: int | None
) -> tuple[list[Tensor], Tensor, Tensor]:
    """log p of states that run together: by sender for each receiver and sample, clean, corrupted.

    The states of an answer by the chain rule are further samples, with rows of their own.
    """
    # 1. Clean and corrupted runs of all factors together, and what is put in from the clean one.
    question, number = factors[0], len(factors)
    net, samples = question.model.net, question.corrupted.samples
    clean, base, read_clean, reader = record_factors(factors)
    logp_clean = read_clean.read_stream(clean.entering[-1])
    logp_corrupted = reader.read_stream(base.entering[-1])
    source = choose_source(factors, clean if number == 1 else clean.repeat(samples), base)
    # 2. The rows of each role in every sample [S, L].
    roles = [find_rows(factor, answer) for factor in factors]
    rows = {
        name: torch.stack([of_factor[name] for of_factor in roles]).repeat_interleave(samples, 0)
        for name in roles[0]
    }
    rows["all"] = torch.ones_like(rows["subject"])
    # 3. Receivers as cells [C S, L, D], as many as fit into memory at once; each layer is run
    #    with the sender's change and without.
    active, dense = count_batch_bytes(net.config, base.entering[0].element_size())
    bound = memory or DEFAULT_MEMORY[base.entering[0].device.type]
    most = max(1, bound // (2 * (active + dense) * question.length * base.samples))
    ends = []
    for sender, receivers in paths:
        change, parts = _find_change(question, sender, rows[sender[0]], base, source), []
        for start in range(0, len(receivers), most):
            chunk = receivers[start : start + most]
            tokens = None if base.tokens is None else base.tokens.repeat(len(chunk), 1)
            with net.taps.on_tokens(tokens), net.taps.in_rows((0,)):
                end = _run_cells(question, sender, base, change, _mark(question, rows, chunk))
            sample = torch.arange(base.samples, device=end.device).repeat(len(chunk))
            logp = reader.read(end[:, reader.rows], sample)
            parts.append(logp.unflatten(0, (len(chunk), base.samples)))
        ends.append(split_factors(torch.cat(parts), number))
    return ends, split_factors(logp_clean, number), split_factors(logp_corrupted, number)


def _run_cells(
    question: Question,
    sender: Any,
    base: Activations,
    change: Float[Tensor, "S L D"],
    reached: _Reached,
) -> Float[Tensor, "B L D"]:
    """The stream at the end of each cell, B = receivers × samples.

    It goes on without the sender's change, which receivers read in addition.
    """
    net, (_, first, part, *_) = question.model.net, sender
    # 1. The base run as it enters the first layer that can read the change [B, L, D].
    cells = len(reached.final) // base.samples
    is_attention = part in ("attn", "attn_z")
    change = change.repeat(cells, 1, 1)
    start = first if is_attention else first + 1
    x, whole = base.entering[start].repeat(cells, 1, 1), net.view(base.entering[0])
    for layer in range(start, net.config.layers):
        block, view, tap = net.block(layer), whole.of(layer), net.taps.at(f"layers.{layer}.")
        with_change, x = (tap("resid_in", stream) for stream in (x + change, x))
        # 2. Attention with the change or without, head by head [B, L, H, d]. Where the sender is
        #    this layer's attention itself, only the MLP can read its change.
        if is_attention and layer == first:
            attn = base.attn[layer].repeat(cells, 1, 1)
            reads_change, with_change = block.after_attention(x, attn + change)
        else:
            z, z_change = (block.attend_tapped(each, view, tap) for each in (x, with_change))
            z = tap("attn_z", torch.where(reached.heads[:, layer, :, :, None], z_change, z))
            attn = tap("attn_out", block.attn_out(z))
            reads_change, with_change = block.after_attention(with_change, attn)
        # 3. The MLP with the change or without [B, L, D]; the stream goes on without.
        reads, stream = block.after_attention(x, attn)
        mlp, mlp_change = (block.through_mlp(read, tap) for read in (reads, reads_change))
        mlp = tap("mlp_out", torch.where(reached.mlp[:, layer, :, None], mlp_change, mlp))
        x = tap("resid_out", block.after_mlp(stream, mlp))
        # 4. A patch of the stream is one of the change as well.
        if net.taps.changed and is_wanted(tap, "resid_in", "resid_out"):
            change = tap("resid_out", block.after_mlp(with_change, mlp)) - x
    # 5. The final state reads the change, where it is a receiver.
    return torch.where(reached.final[:, None, None], x + change, x)
