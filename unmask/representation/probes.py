"""Linear probes: can a line read off which fact a subject belongs to, in phrasings it never saw?

Probes read the stream at the last subject token behind each layer. They are fitted on some
phrasings and judged on others, within a direction and from one direction to the other: whether the
name's state says what the description's says.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.data.facts import Fact
from unmask.evaluation.batches import count_row_bytes, fit_rows, map_batches
from unmask.evaluation.statistics import ALPHA, cluster, estimate_mean, permutation_p
from unmask.net.model import Model
from unmask.representation.settings import Extraction
from unmask.representation.states import Case, lay_out_case, stack_rows

SCHEMA = "probes/1"
HELD_OUT = 3
"""Every third phrasing is held out."""
PENALTY = 1.0
PERMUTATIONS = 199


def probe(
    model: Model, group: str, facts: Sequence[Fact], length: int | None = None, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Accuracy of a probe for each layer, direction it was fitted in and direction it is tested in.

    With an interval by fact, and a null in which the tested facts change places.
    """
    check_probes({group: facts})
    streams = collect_streams(model, facts, length)
    held = _hold_out(facts)
    is_out = np.array([fact.phrasing in held for fact in facts])
    ways = np.array([fact.direction for fact in facts])
    labels = np.array([fact.fact_id for fact in facts])
    for layer in range(streams.shape[1]):
        for fitted in sorted(set(ways)):
            for tested in sorted(set(ways)):
                train, test = ~is_out & (ways == fitted), is_out & (ways == tested)
                said = fit_and_say(streams[train, layer], labels[train], streams[test, layer])
                yield {
                    "group": group,
                    "kind": model.kind,
                    "layer": layer,
                    "fitted": fitted,
                    "tested": tested,
                } | _judge(said, labels[test], seed)


def check_probes(groups: Mapping[str, Sequence[Fact]]) -> None:
    """Refuse facts that leave a probe nothing to be fitted to or judged on, in any direction."""
    for group, facts in groups.items():
        phrasings, names = ({fact.phrasing for fact in facts}, {fact.fact_id for fact in facts})
        if len(phrasings) < HELD_OUT or len(names) < 2:
            raise UserError(
                f"probes need at least 2 facts in {HELD_OUT} phrasings, group {group} has "
                f"{len(names)} in {len(phrasings)}: give more, or leave them out by --no-probes."
            )
        held = _hold_out(facts)
        for way in sorted({fact.direction for fact in facts}):
            mine = [fact for fact in facts if fact.direction == way]
            fitted = {fact.fact_id for fact in mine if fact.phrasing not in held}
            if len(fitted) < 2 or all(fact.phrasing not in held for fact in mine):
                raise UserError(
                    f"probes hold out the phrasings {', '.join(map(str, sorted(held)))} and are "
                    f"fitted to the others, group {group} asked {way} has only "
                    f"{', '.join(map(str, sorted({fact.phrasing for fact in mine})))}: ask at "
                    "least 2 facts in both kinds of phrasings in each direction, or leave probes "
                    "out by --no-probes."
                )


def _hold_out(facts: Sequence[Fact]) -> set[int]:
    """The phrasings that probes are judged on."""
    return set(sorted({fact.phrasing for fact in facts})[HELD_OUT - 1 :: HELD_OUT])


def fit_and_say(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """What a ridge classifier, fitted to standardised vectors, says of others.

    The others are centred by their own mean: what a direction or a phrasing adds to all is no clue.
    """
    from sklearn.linear_model import RidgeClassifier

    spread = train.std(0) + 1e-6
    one, other = (train - train.mean(0)) / spread, (test - test.mean(0)) / spread
    return RidgeClassifier(alpha=PENALTY * train.shape[1] ** 0.5).fit(one, labels).predict(other)


def _judge(said: np.ndarray, true: np.ndarray, seed: int) -> dict[str, Any]:
    hits = (said == true).astype(float)
    value = estimate_mean(cluster(hits, list(true)), is_share=True)
    names = np.unique(true)
    generator = np.random.default_rng(derive_seed(seed, "probes", len(names)))
    null = []
    for _ in range(PERMUTATIONS):
        renamed = dict(zip(names, generator.permutation(names), strict=True))
        null.append(np.mean(said == np.array([renamed[name] for name in true])))
    return {
        "accuracy": value.mean,
        "low": value.low,
        "high": value.high,
        "null_mean": float(np.mean(null)),
        "null_high": float(np.quantile(null, 1 - ALPHA / 2)),
        "p": permutation_p(np.array(null), value.mean),
        "prompts": len(true),
        "facts": len(names),
    }


def collect_streams(model: Model, facts: Sequence[Fact], length: int | None = None) -> np.ndarray:
    """The stream behind every layer at the last subject token [facts, layers, D]."""
    cases = [lay_out_case(model, fact, ("",), Extraction(length=length)) for fact in facts]
    each = count_row_bytes(model, max(case.length for case in cases), 0)
    found: dict[int, np.ndarray] = {}
    groups: dict[int, list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault(0 if model.kind == "causal" else case.length, []).append(i)
    for group in groups.values():
        for batch, streams in map_batches(
            group, fit_rows(model, each), lambda batch: _record(model, [cases[i] for i in batch])
        ):
            found |= zip(batch, streams, strict=True)
    return np.stack([found[i] for i in range(len(cases))])


@torch.inference_mode()
def _record(model: Model, cases: Sequence[Case]) -> list[np.ndarray]:
    net = model.net
    rows = stack_rows([case.rows[0] for case in cases], model.device)
    at = torch.arange(len(cases), device=model.device)
    x, taken = net.embed(rows.tokens), []
    for layer in range(net.config.layers):
        x = net.run_layers(x, layer, layer + 1)
        taken.append(x[at, rows.place].float())
    return list(torch.stack(taken, 1).cpu().numpy())
