"""Stages before the network is opened: what is asked, what is recalled, how answers un-mask."""

from typing import Any

from unmask.base.files import write_json
from unmask.base.progress import track
from unmask.base.tables import Parts, write_table
from unmask.evaluation.commits import SCHEMA as ORDER_SCHEMA
from unmask.evaluation.commits import watch_commits
from unmask.evaluation.factorization import SCHEMA as FACTORIZATION_SCHEMA
from unmask.evaluation.factorization import measure_factorization
from unmask.evaluation.members import measure_members
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import require_tokenizer, spread
from unmask.evaluation.recall import RecallSettings, measure_recall
from unmask.evaluation.summary import summarise
from unmask.report.artefacts import (
    FACTORIZATION,
    ORDER,
    QUESTIONS,
    QUESTIONS_SCHEMA,
    RECALL,
    SUMMARY,
    UNMASKING,
    UNMASKING_SCHEMA,
)
from unmask.sampling.texts import sample
from unmask.study.bench import Bench
from unmask.study.outcome import Outcome


def ask(bench: Bench) -> Outcome:
    """Write down every prompt that recall asks."""
    rows = [
        {
            "split": split.name,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "direction": fact.direction,
            "trained": fact.trained,
            "subject": fact.subject,
            "object": fact.object,
            "prompt": fact.prompt,
            "completion": fact.completion,
        }
        for split in bench.splits
        for fact in split.facts
    ]
    write_table(bench.folder / QUESTIONS, rows, QUESTIONS_SCHEMA)
    _ = bench.data_path  # a corpus that is made is saved now
    return Outcome((QUESTIONS,))


def recall(bench: Bench) -> Outcome:
    """Recall against steps with controls, and the factorization check on the same sentences."""
    study, folder = bench.settings, bench.folder
    how = RecallSettings(
        steps=study.amounts.steps,
        guidance=study.guidance,
        device=bench.device,
        dtype=study.dtype,
    )
    table = measure_recall(bench.families, bench.splits, how, folder / "recall")
    summary = summarise(table)
    write_json(folder / SUMMARY, summary.to_json())
    measure_members(
        bench.families,
        lambda model: measure_factorization(model, bench.splits, None),
        folder / "factorization",
        FACTORIZATION_SCHEMA,
        bench.device,
        study.dtype,
    )
    return Outcome((RECALL, SUMMARY, FACTORIZATION))


def denoise(bench: Bench) -> Outcome:
    """Which tokens are committed when, and a few texts token by token."""
    folder, amounts = bench.folder / "denoising", bench.settings.amounts
    orders = Parts(folder / "parts" / "order", ORDER_SCHEMA)
    texts = Parts(folder / "parts" / "unmasking", UNMASKING_SCHEMA)
    missing = [name for name in bench.split_names if not texts.has(name)]
    for name in track(missing, "splits watched", len(missing)):
        facts = spread(bench.corpus[name], amounts.watched)
        how: dict[str, Any] = {"steps": amounts.trace_steps, "guidance": bench.settings.guidance}
        length = bench.length(bench.model)
        rows = watch_commits(
            bench.model, [fact.prompt for fact in facts], bench.texts(), length, **how
        )
        whose = [{"split": name, "fact": fact.fact_id} for fact in facts]
        # Prompts are told apart over all splits, since intervals go by them.
        numbered = [f"{name} {i}" for i in range(len(facts))]
        orders.write(
            name,
            [
                row | whose[at] | {"prompt": numbered[at]}
                for row in rows
                if isinstance(at := row["prompt"], int)
            ],
        )
        texts.write(name, _watch_texts(bench, name, length, how))
    for path, parts, schema in (
        (ORDER, orders, ORDER_SCHEMA),
        (UNMASKING, texts, UNMASKING_SCHEMA),
    ):
        write_table(bench.folder / path, parts.gather(bench.split_names), schema)
    return Outcome((ORDER, UNMASKING))


def _watch_texts(bench: Bench, split: str, length: int, how: dict[str, Any]) -> list[dict]:
    """A row for each token of the examples, up to the end of their texts."""
    model = bench.model
    tokenizer = require_tokenizer(model)
    facts = spread(bench.corpus[split], bench.settings.amounts.examples)
    found = sample(model, [fact.prompt for fact in facts], length=length, keep_states=False, **how)
    rows = []
    for i, fact in enumerate(facts):
        tokens, steps = found.tokens[i].tolist(), found.committed_at[i].tolist()
        written = [p for p, token in enumerate(tokens) if steps[p] and token == tokenizer.end_id]
        end = written[0] + 1 if written else len(tokens)
        given = sum(step == 0 for step in steps)
        said = tokenizer.decode(tokens[given:])
        rows += [
            {
                "split": split,
                "fact": fact.fact_id,
                "prompt": fact.prompt,
                "completion": fact.completion,
                "hit": is_contained(said, fact.completion),
                "steps": how["steps"],
                "position": position,
                "piece": tokenizer.piece(tokens[position]),
                "is_end": tokens[position] == tokenizer.end_id,
                "step": steps[position],
                "confidence": float(found.confidence[i, position]),
                "entropy": float(found.entropy[i, position]),
            }
            for position in range(end)
        ]
    return rows
