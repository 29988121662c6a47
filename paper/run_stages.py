"""The stages of stages.yaml, and the data sets that they need."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.base.config import build
from unmask.base.errors import UserError
from unmask.base.identity import digest_file
from unmask.base.reading import parse_yaml, read_text

STAGES = Path(__file__).with_name("stages.yaml")
RUNS = Path("runs") / "paper"
KEPT = Path("docs") / "results" / "tables"
NAMES = re.compile(r"\{([\w-]+)\}")
"""What a command names: data sets, and stages before its own."""


@dataclass(frozen=True)
class DataSet:
    """Files that nobody here can make: where they come from, and the digests of the right ones."""

    name: str
    source: str
    path: str
    files: Mapping[str, str]

    def find(self, folder: Path) -> Path:
        """Where it lies in the user's folder, each file checked."""
        place = folder / self.path
        for name, expected in self.files.items():
            file = place / name if name != "." else place
            if not file.is_file():
                raise UserError(f"{file} is missing: {self.name} comes from {self.source}.")
            if (given := digest_file(file)) != expected:
                raise UserError(
                    f"{file} has the SHA-256 {given}, expected {expected}: {self.name} comes from "
                    f"{self.source}."
                )
        return place


@dataclass(frozen=True)
class Stage:
    """Commands that turn data and other stages' folders into a folder, and perhaps a page."""

    name: str
    run: tuple[str, ...]
    """Each may name {out}, {page}, data sets, and folders of stages before this one."""
    page: str | None = None
    note: str = ""
    """How to read the page, put below its title."""
    minutes: float | None = None
    """As measured on one H200."""
    has_parts: bool = False
    """The script itself trusts the parts of its folder by what made them: the folder is kept."""
    keep: bool = False
    """Its folder holds tables alone and belongs to the repository: pages are drawn from it without
    the models, which are gone."""

    @property
    def folder(self) -> Path:
        return (KEPT if self.keep else RUNS) / self.name

    @property
    def record_path(self) -> Path:
        return self.folder.parent / f"{self.name}.json"

    @property
    def needs(self) -> list[str]:
        found = {name for command in self.run for name in NAMES.findall(command)}
        return sorted(found - {"out", "page"})

    @property
    def scripts(self) -> list[Path]:
        """Scripts and sweep files that the commands name."""
        words = [shlex.split(command) for command in self.run]
        paths = [Path(each[1]) for each in words if each[0] == "python"]
        # What stands beside a script and is named after it is a part of it.
        parts = [sorted(path.parent.glob(f"{path.stem}_*.py")) for path in paths]
        paths += [Path(each[2]) for each in words if each[:2] == ["unmask", "sweep"]]
        return [*paths, *(part for each in parts for part in each)]


def read_stages(path: Path = STAGES) -> tuple[dict[str, DataSet], dict[str, Stage]]:
    """The data sets and the stages, each stage after those that it needs."""
    content = parse_yaml(read_text(path), str(path))
    data = {
        name: build(DataSet, {"name": name, **value}, f"data {name} of {path.name}")
        for name, value in content["data"].items()
    }
    stages: dict[str, Stage] = {}
    for stage in (each for value in content["stages"] for each in _make_stages(value)):
        for name in stage.needs:
            if name not in data and name not in stages:
                raise UserError(
                    f"stage {stage.name} needs {name!r}: expected a data set, or a stage that "
                    "stands before it; move it up, or name another."
                )
        if stage.name in data or stage.name in stages:
            raise UserError(
                f"the name {stage.name!r} is there twice: expected one for each stage and data "
                "set; rename one of them."
            )
        stages[stage.name] = stage
    return data, stages


def _make_stages(value: dict[str, Any]) -> Iterator[Stage]:
    """The one stage that an entry describes, or one for each value of its `each`."""
    given = {name: each for name, each in value.items() if name != "each"}
    stage = build(Stage, given, f"stage {value.get('name', '?')}")
    if "each" not in value:
        yield stage
    for each in value.get("each", ()):
        name, *run = (text.replace("{each}", str(each)) for text in (stage.name, *stage.run))
        yield replace(stage, name=name, run=tuple(run))
