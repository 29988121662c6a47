"""The layers and other rules are kept, the check of them can fail, docs name what is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import unmask
from tools.check_layers import (
    MOST_KINDS,
    MOST_LINES,
    MOST_SMALL,
    MOST_UPPER_LINES,
    PHRASES,
    find_breaches,
)

ROOT = Path(__file__).parents[1]


@pytest.fixture
def package(tmp_path) -> Path:
    """The folder of a package, in an empty one of the layers."""
    folder = tmp_path / "unmask" / "net"
    folder.mkdir(parents=True)
    return folder


def test_layers_are_in_order():
    assert list(find_breaches(ROOT)) == []


def test_breaches_are_found(tmp_path):
    package = tmp_path / "unmask" / "data"
    package.mkdir(parents=True)
    (package / "early.py").write_text("def f():\n    from unmask.net.presets import preset\n")
    (package / "sly.py").write_text("from unmask import cli\n")
    (package / "public.py").write_text("from unmask import load\n")
    (package / "relative.py").write_text("from ..net import presets\n")
    (tmp_path / "unmask" / "helpers.py").write_text("from unmask.cli import main\n")
    (package / "long.py").write_text("\n" * (MOST_LINES + 1))
    (tmp_path / "unmask" / "utils").mkdir()
    (tmp_path / "unmask" / "utils" / "a.py").write_text("")
    assert list(find_breaches(tmp_path)) == [
        "unmask/data/early.py:2: data imports from net, a later layer",
        "unmask/data/public.py:1: `from unmask import load` hides its package",
        "unmask/data/relative.py:1: a relative import hides its package",
        "unmask/data/sly.py:1: data imports from cli, a later layer",
        "unmask/helpers.py:1: a package that tools/check_layers.py does not know",
        "unmask/utils/a.py:1: a package that tools/check_layers.py does not know",
        f"unmask/data/long.py:401: 401 lines, more than {MOST_LINES}: it holds two things",
    ]


def test_upper_packages_have_a_narrower_range(tmp_path):
    report = tmp_path / "unmask" / "report"
    report.mkdir(parents=True)
    (report / "long.py").write_text("\n" * (MOST_UPPER_LINES + 1))
    for i in range(MOST_SMALL):
        (report / f"small{i}.py").write_text("")
    (breach,) = find_breaches(tmp_path)
    assert breach == "unmask/report/long.py:351: 351 lines, more than 350: it holds two things"
    (report / "__init__.py").write_text("")
    assert list(find_breaches(tmp_path)) == [breach]
    (report / "smaller.py").write_text("")
    assert f"{MOST_SMALL + 1} files of measures, " in list(find_breaches(tmp_path))[1]


def test_later_packages_know_no_single_measure(tmp_path):
    sweep = tmp_path / "unmask" / "sweep"
    sweep.mkdir(parents=True)
    (sweep / "a.py").write_text(
        "from unmask.measures import runner\n"
        "from unmask.measures.table import find_measure\n"
        "from unmask.experiments.planted.corpus import make_sealed_corpus\n"
    )
    assert list(find_breaches(tmp_path)) == []
    (sweep / "a.py").write_text("from unmask.measures import runner, quality\n")
    (breach,) = find_breaches(tmp_path)
    assert "a.py:1: unmask.measures.quality is of one measure: what sweep needs" in breach


def test_words_and_prints_are_found(tmp_path, package):
    (tmp_path / "unmask" / "cli").mkdir()
    (tmp_path / "unmask" / "cli" / "verb.py").write_text("print(1)\n")
    (package / "loud.py").write_text("def f():\n    print(1)\n    console.print(2)\n")
    (package / "phrase.py").write_text(
        "# The number format, in nats a token.\ndef tell_it(told): ...\nuse(told)\n"
    )
    assert list(find_breaches(tmp_path)) == [
        "unmask/net/loud.py:2: print: use logging",
        "unmask/net/phrase.py:1: 'number format' is not plain English of the field",
        "unmask/net/phrase.py:1: 'nats a' is not plain English of the field",
        "unmask/net/phrase.py:2: `tell_it` is not plain English of the field",
        "unmask/net/phrase.py:2: `told` is not plain English of the field",
    ]


def test_a_class_or_alias_has_a_name_of_its_own(tmp_path, package):
    (package / "one.py").write_text("class Batch: ...\nRows = list[int]\nT = int\nMOST = 1\n")
    (package / "two.py").write_text("from one import Batch\nT = str\nMOST = 2\nrows = Batch()\n")
    assert list(find_breaches(tmp_path)) == []
    (package / "two.py").write_text("def f():\n    class _Batch: ...\nRows = tuple[int]\n")
    assert list(find_breaches(tmp_path)) == [
        "unmask/net/two.py:2: another class or alias Batch, the first is at unmask/net/one.py:1",
        "unmask/net/two.py:3: another class or alias Rows, the first is at unmask/net/one.py:2",
    ]


def test_a_public_function_has_a_name_of_its_own(tmp_path):
    for folder in ("net", "measures", "data"):
        (tmp_path / "unmask" / folder).mkdir(parents=True)
    names = {"net/one": "describe", "net/two": "_hide", "measures/one": "describe"}
    names |= {"measures/two": "describe", "data/one": "_hide"}
    for place, name in names.items():
        (tmp_path / f"unmask/{place}.py").write_text(f"def {name}(): ...\n")
    assert [each for each in find_breaches(tmp_path) if "lines" not in each] == []
    (tmp_path / "unmask/data/one.py").write_text("class A:\n    def f(): ...\n\ndef f(): ...\n")
    (tmp_path / "unmask/measures/two.py").write_text("def f(): ...\n")
    (tmp_path / "unmask/data/two.py").write_text("def describe(): ...\n")
    assert [each for each in find_breaches(tmp_path) if "lines" not in each] == [
        "unmask/measures/two.py:1: another public function f, the first is at unmask/data/one.py:4",
        "unmask/net/one.py:1: another public function describe, the first is at "
        "unmask/data/two.py:1",
    ]


def test_circles_of_imports_are_found(tmp_path, package):
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from unmask.net import two\n")
    (package / "two.py").write_text("def f():\n    import unmask.net.three\n")
    (package / "three.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from unmask.net.one import f\n"
    )
    assert list(find_breaches(tmp_path)) == []
    (package / "three.py").write_text("def g():\n    from unmask.net.one import f\n")
    (package / "four.py").write_text("from unmask.net.one import f\n")
    (package / "alone.py").write_text("from unmask.net.alone import f\n")
    assert list(find_breaches(tmp_path)) == [
        "unmask/net/alone.py:1: a circle of imports: unmask/net/alone.py → unmask/net/alone.py",
        "unmask/net/one.py:1: a circle of imports: unmask/net/one.py → unmask/net/two.py → "
        "unmask/net/three.py → unmask/net/one.py",
    ]


def test_docstrings_that_need_another_text_are_found(tmp_path, package):
    (package / "one.py").write_text('"""Often. Of it."""\nx = 1\n"""Of what?"""\n')
    (package / "two.py").write_text('def f():\n    """The same as f."""\n')
    assert list(find_breaches(tmp_path)) == [
        "unmask/net/one.py:3: a docstring begins with 'Of': say the whole thing",
        "unmask/net/two.py:2: a docstring begins with 'The same': say the whole thing",
    ]


COMPARISONS = (
    'kind == "causal"', 'model.kind != "causal"', 'model.blueprint.kind in ("masked", "causal")',
    '"causal" != row["kind"]', 'match model.kind:\n    case "causal": pass', "kind not in KINDS",
)  # fmt: skip


def test_comparisons_of_kinds_are_counted_by_file(tmp_path, package):
    (package / "asking.py").write_text(
        'KINDS[model.kind]\nkinds == "causal"\nkind.x == 1\nkind is X\n'
    )
    for i, comparison in enumerate(COMPARISONS[:MOST_KINDS]):
        (package / f"compares{i}.py").write_text(f"\n{comparison}\n" * 2)
    assert list(find_breaches(tmp_path)) == []
    for comparison in COMPARISONS:
        (package / "one_more.py").write_text(f"{comparison}\n")
        (breach,) = find_breaches(tmp_path)
        assert breach.startswith("6 files compare the kind of a model, more than 5: ")
        assert "unmask/net/compares0.py:2, " in breach and "unmask/net/one_more.py:1;" in breach


def test_public_names_are_there():
    for name in unmask.__all__:
        assert getattr(unmask, name) is not None
    assert set(unmask.__all__) <= set(dir(unmask))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unmask.nothing


DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WORDS = re.compile(r"`([^`\s]+)`")
LINKS = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?!\.\.)[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(py|md|yaml|toml|txt|cff)")
SYMBOL = re.compile(r"unmask(\.\w+)+")


def resolves(word: str, document: Path) -> bool:
    """Whether a file or symbol that a document names is there."""
    if word.startswith("pages/"):  # of the site, drawn by `make docs`
        return (ROOT / "docs" / "results" / Path(word).name).with_suffix(".md").is_file()
    if SYMBOL.fullmatch(word):
        parts = word.split(".")
        for i in range(len(parts), 0, -1):
            try:
                found: object = import_module(".".join(parts[:i]))
            except ModuleNotFoundError:
                continue
            for attribute in parts[i:]:
                if not hasattr(found, attribute):
                    return False
                found = getattr(found, attribute)
            return True
        return False
    if FILE.fullmatch(word):
        return any((base / word).exists() for base in (ROOT, ROOT / "unmask", document.parent))
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_what_is_there(document):
    text = document.read_text()
    missing = [word for word in WORDS.findall(text) if not resolves(word, document)]
    links = [link.partition("#")[0] for link in LINKS.findall(text) if "://" not in link]
    missing += [link for link in links if not (document.parent / link).exists()]
    assert missing == []


def test_documents_are_plain():
    phrases = {path.name: PHRASES.findall(path.read_text()) for path in DOCUMENTS}
    assert {name: found for name, found in phrases.items() if found} == {}


def test_a_missing_name_is_found():
    assert not resolves("unmask/net/absent.py", ROOT / "README.md")
    assert not resolves("unmask.net.presets.absent", ROOT / "README.md")
    assert resolves("unmask.net.presets.preset", ROOT / "README.md")
