"""What a study leaves in its run folder: names, schemas, and a reader that never gives up.

A stage writes its artefacts and, when it is done, a mark with what it took and what it has to say.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.files import read_json_object
from unmask.base.runs import RUN_FORMAT, RunRecord
from unmask.base.tables import read_table
from unmask.evaluation.commits import SCHEMA as ORDER_SCHEMA
from unmask.evaluation.factorization import SCHEMA as FACTORIZATION_SCHEMA
from unmask.evaluation.recall import SCHEMA as RECALL_SCHEMA
from unmask.evaluation.summary import Summary
from unmask.tracing.averages import SCHEMA as AVERAGES_SCHEMA
from unmask.tracing.averages import TESTS_SCHEMA
from unmask.tracing.table import FACTS_SCHEMA as TRACED_SCHEMA

QUESTIONS, QUESTIONS_SCHEMA = "data/questions.parquet", "study-questions/1"
RECALL, SUMMARY = "recall/recall.parquet", "recall/summary.json"
FACTORIZATION = "factorization/factorization.parquet"
ORDER, UNMASKING = "denoising/order.parquet", "denoising/unmasking.parquet"
UNMASKING_SCHEMA = "study-unmasking/1"
TRACING = "tracing"
ALONG = "tracing/along"
CONSIDERED, CONSIDERED_SCHEMA = "tracing/considered.parquet", "study-considered/1"
MAPS, MAPS_SCHEMA = "tracing/maps.parquet", "study-maps/1"
TOKENS, TOKENS_SCHEMA = "tracing/tokens.parquet", "study-tokens/1"
SYMMETRY, SYMMETRY_SCHEMA = "symmetry/symmetry.parquet", "symmetry/1"
SIMILARITY, SIMILARITY_SCHEMA = "symmetry/similarity.parquet", "study-similarity/1"
ENVIRONMENT = "environment.json"
PAGE = "page.html"

SCHEMAS = {
    QUESTIONS: QUESTIONS_SCHEMA,
    RECALL: RECALL_SCHEMA,
    FACTORIZATION: FACTORIZATION_SCHEMA,
    ORDER: ORDER_SCHEMA,
    UNMASKING: UNMASKING_SCHEMA,
    f"{TRACING}/averages.parquet": AVERAGES_SCHEMA,
    f"{TRACING}/tests.parquet": TESTS_SCHEMA,
    f"{TRACING}/facts.parquet": TRACED_SCHEMA,
    f"{ALONG}/averages.parquet": AVERAGES_SCHEMA,
    f"{ALONG}/facts.parquet": TRACED_SCHEMA,
    CONSIDERED: CONSIDERED_SCHEMA,
    MAPS: MAPS_SCHEMA,
    TOKENS: TOKENS_SCHEMA,
    SYMMETRY: SYMMETRY_SCHEMA,
    SIMILARITY: SIMILARITY_SCHEMA,
}

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """That a stage is done."""

    stage: str
    seconds: float
    artefacts: tuple[str, ...]
    """Relative to the run folder; a stage whose artefacts are gone is made again."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be measured, and why."""


@dataclass(frozen=True)
class StudyFolder:
    """A run folder of `unmask study`, as far as it goes."""

    path: Path

    @cached_property
    def record(self) -> RunRecord:
        """Settings and versions; a folder of anything else is a `UserError`."""
        record = build(RunRecord, read_json_object(self.path / "run.json"), f"{self.path}/run.json")
        if record.format != RUN_FORMAT:
            raise UserError(
                f"{self.path} was written in run format {record.format}, expected {RUN_FORMAT}: "
                "run the study anew with this version."
            )
        if record.verb != "study" or "model" not in record.settings:
            raise UserError(
                f"{self.path} holds a run of `unmask {record.verb}`, expected one of "
                "`unmask study` with a model."
            )
        return record

    @property
    def names(self) -> dict[str, str]:
        """The names of the models in the tables, by the part they play."""
        return dict(self.record.settings["names"])

    def rows(self, name: str) -> list[Row]:
        """The rows of an artefact; missing, broken or of another version it is a `UserError`."""
        return read_table(self.path / name, SCHEMAS[name]).to_pylist()

    @property
    def advice(self) -> str:
        """How what is missing or broken is made anew."""
        return f" Draw it anew after `unmask study --resume --out {shlex.quote(str(self.path))}`."

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def mark(self, stage: str) -> Mark | None:
        """The mark of a stage, or None while it is not done."""
        path = self.path / "stages" / f"{stage}.json"
        return build(Mark, read_json_object(path), str(path)) if path.is_file() else None

    def notes(self, stage: str) -> Sequence[str]:
        """What a stage had to say; a mark that is broken says nothing."""
        try:
            found = self.mark(stage)
        except UserError:
            return ()
        return found.notes if found is not None else ()

    @cached_property
    def summary(self) -> Summary:
        """Recall with its intervals."""
        path = self.path / SUMMARY
        try:
            return Summary.from_json(read_json_object(path))
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path} is of another version ({error}): measure recall anew."
            ) from None
