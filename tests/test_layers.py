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


def find(root: Path, files: dict[str, str]) -> list[str]:
    """The breaches of a package, into whose folder these files are written before."""
    for name, text in files.items():
        path = root / "unmask" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(find_breaches(root))


@pytest.mark.prove  # `make check` as well
def test_layers_are_in_order():
    assert list(find_breaches(ROOT)) == []


def test_breaches_are_found(tmp_path):
    files = {
        "data/early.py": "def f():\n    from unmask.net.presets import preset\n",
        "data/sly.py": "from unmask import cli\n",
        "data/public.py": "from unmask import load\n",
        "data/relative.py": "from ..net import presets\n",
        "helpers.py": "from unmask.cli import main\n",
        "data/long.py": "\n" * (MOST_LINES + 1),
        "utils/a.py": "",
    }
    assert find(tmp_path, files) == [
        "unmask/data/early.py:2: data imports from net, a later layer",
        "unmask/data/public.py:1: `from unmask import load` hides its package",
        "unmask/data/relative.py:1: a relative import hides its package",
        "unmask/data/sly.py:1: data imports from cli, a later layer",
        "unmask/helpers.py:1: a package that tools/check_layers.py does not know",
        "unmask/utils/a.py:1: a package that tools/check_layers.py does not know",
        f"unmask/data/long.py:401: 401 lines, more than {MOST_LINES}: it holds two things",
    ]


def test_upper_packages_have_a_narrower_range(tmp_path):
    files = {f"report/small{i}.py": "" for i in range(MOST_SMALL)}
    breaches = find(tmp_path, files | {"report/long.py": "\n" * (MOST_UPPER_LINES + 1)})
    assert breaches == ["unmask/report/long.py:351: 351 lines, more than 350: it holds two things"]
    assert find(tmp_path, {"report/__init__.py": ""}) == breaches
    assert f"{MOST_SMALL + 1} files of measures, " in find(tmp_path, {"report/smaller.py": ""})[1]


def test_later_packages_know_no_single_measure(tmp_path):
    allowed = (
        "from unmask.measures import runner\n"
        "from unmask.measures.table import find_measure\n"
        "from unmask.experiments.planted.corpus import make_sealed_corpus\n"
    )
    assert find(tmp_path, {"sweep/a.py": allowed}) == []
    (breach,) = find(tmp_path, {"sweep/a.py": "from unmask.measures import runner, quality\n"})
    assert "a.py:1: unmask.measures.quality is of one measure: what sweep needs" in breach


def test_words_and_prints_are_found(tmp_path):
    files = {
        "cli/verb.py": "print(1)\n",
        "net/loud.py": "def f():\n    print(1)\n    console.print(2)\n",
        "net/phrase.py": "# A number format, nats a token.\ndef tell_it(told): ...\nuse(told)\n",
    }
    assert find(tmp_path, files) == [
        "unmask/net/loud.py:2: print: use logging",
        "unmask/net/phrase.py:1: 'number format' is not plain English of the field",
        "unmask/net/phrase.py:1: 'nats a' is not plain English of the field",
        "unmask/net/phrase.py:2: `tell_it` is not plain English of the field",
        "unmask/net/phrase.py:2: `told` is not plain English of the field",
    ]


def test_a_class_or_alias_has_a_name_of_its_own(tmp_path):
    one = "class Batch: ...\nRows = list[int]\nT = int\nMOST = 1\n"
    two = "from one import Batch\nT = str\nMOST = 2\nrows = Batch()\n"
    assert find(tmp_path, {"net/one.py": one, "net/two.py": two}) == []
    two = "def f():\n    class _Batch: ...\nRows = tuple[int]\n"
    assert find(tmp_path, {"net/two.py": two}) == [
        "unmask/net/two.py:2: another class or alias Batch, the first is at unmask/net/one.py:1",
        "unmask/net/two.py:3: another class or alias Rows, the first is at unmask/net/one.py:2",
    ]


def test_a_public_function_has_a_name_of_its_own(tmp_path):
    names = {"net/one": "describe", "net/two": "_hide", "measures/one": "describe"}
    names |= {"measures/two": "describe", "data/one": "_hide"}
    files = {f"{place}.py": f"def {name}(): ...\n" for place, name in names.items()}
    assert [each for each in find(tmp_path, files) if "lines" not in each] == []
    files = {
        "data/one.py": "class A:\n    def f(): ...\n\ndef f(): ...\n",
        "measures/two.py": "def f(): ...\n",
        "data/two.py": "def describe(): ...\n",
    }
    assert [each for each in find(tmp_path, files) if "lines" not in each] == [
        "unmask/measures/two.py:1: another public function f, the first is at unmask/data/one.py:4",
        "unmask/net/one.py:1: another public function describe, the first is at "
        "unmask/data/two.py:1",
    ]


def test_circles_of_imports_are_found(tmp_path):
    files = {
        "net/__init__.py": "",
        "net/one.py": "from unmask.net import two\n",
        "net/two.py": "def f():\n    import unmask.net.three\n",
        "net/three.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from unmask.net.one import f\n",
    }
    assert find(tmp_path, files) == []
    files = {
        "net/three.py": "def g():\n    from unmask.net.one import f\n",
        "net/four.py": "from unmask.net.one import f\n",
        "net/alone.py": "from unmask.net.alone import f\n",
    }
    assert find(tmp_path, files) == [
        "unmask/net/alone.py:1: a circle of imports: unmask/net/alone.py → unmask/net/alone.py",
        "unmask/net/one.py:1: a circle of imports: unmask/net/one.py → unmask/net/two.py → "
        "unmask/net/three.py → unmask/net/one.py",
    ]


def test_docstrings_that_need_another_text_are_found(tmp_path):
    files = {
        "net/one.py": '"""Often. Of it."""\nx = 1\n"""Of what?"""\n',
        "net/two.py": 'def f():\n    """The same as f."""\n',
    }
    assert find(tmp_path, files) == [
        "unmask/net/one.py:3: a docstring begins with 'Of': say the whole thing",
        "unmask/net/two.py:2: a docstring begins with 'The same': say the whole thing",
    ]


COMPARISONS = (
    'kind == "causal"', 'model.kind != "causal"', 'model.blueprint.kind in ("masked", "causal")',
    '"causal" != row["kind"]', 'match model.kind:\n    case "causal": pass', "kind not in KINDS",
)  # fmt: skip


def test_comparisons_of_kinds_are_counted_by_file(tmp_path):
    files = {"net/asking.py": 'KINDS[model.kind]\nkinds == "causal"\nkind.x == 1\nkind is X\n'}
    for i, comparison in enumerate(COMPARISONS[:MOST_KINDS]):
        files[f"net/compares{i}.py"] = f"\n{comparison}\n" * 2
    assert find(tmp_path, files) == []
    for comparison in COMPARISONS:
        (breach,) = find(tmp_path, {"net/one_more.py": f"{comparison}\n"})
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
