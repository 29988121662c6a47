"""The command line as a person uses it."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.commands import run
from unmask.cli.main import MODULES, app, list_verbs, load_verb
from unmask.measures.table import list_measures

HEAVY = {"torch", "scipy", "sklearn", "pyarrow", "matplotlib", "plotly", "transformers"}
HEAVY |= {"tokenizers", "safetensors", "jinja2", "rich.progress", "numpy", "yaml"}
"""What takes long to import and is needed only by those who do the work."""


def test_help_imports_nothing_heavy():
    """Help is quick because of what it does not import, whatever else the machine does."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "sys.argv = ['unmask', '--help']\n"
        "from unmask.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "study" in done.stdout, done.stderr
    imported = set(done.stderr.split())
    assert "unmask.cli.main" in imported and imported & HEAVY == set()


def test_the_list_says_what_each_verb_says_of_itself():
    """The list imports no verb, so its lines stand in a file of their own."""
    listed = [name for each in list_verbs().values() for name in each]
    assert set(listed) == MODULES.keys() | list_measures().keys() and "report" in listed
    for verbs in list_verbs().values():
        for name, line in verbs.items():
            assert str(load_verb(name).help).partition("\n\n")[0] == line


def test_ctrl_c_while_the_command_is_imported_is_one_word():
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'unmask.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from unmask.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("active", "active")])
def test_waiting_threads_sleep_unless_told_otherwise(given, found):
    """OpenMP reads how threads wait when torch is loaded, and not again."""
    code = (
        "import os, sys\n"
        "class Spy:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'torch':\n"
        "            os.write(1, os.environ['OMP_WAIT_POLICY'].encode())\n"
        "            os._exit(7)\n"
        "sys.meta_path.insert(0, Spy())\n"
        "from unmask.__main__ import main\n"
        "sys.argv = ['unmask', 'info', 'reversal-mdm']\n"
        "main()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert (done.returncode, done.stdout.decode()) == (7, found), done.stderr.decode()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("unmask tr", ["transparency", "trace", "train"]),
        ("unmask sample rev", ["reversal-ar", "reversal-mdm"]),
        ("unmask train toy-g", ["toy-gaussian"]),
        ("unmask sample reversal-mdm --cache e", ["exact"]),
    ],
)
def test_a_shell_completes_verbs_models_recipes_and_choices(typed, offered):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    environment = words | {"_UNMASK_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, [], env=environment, prog_name="unmask")
    assert done.stdout.split() == offered, done.output


def test_data_make_show_check(tmp_path):
    made = run("data", "make", "reversal", tmp_path / "corpus", "--facts", 3)
    assert made.returncode == 0 and "p2d_reverse" in made.stdout
    checked = run("data", "check", tmp_path / "corpus")
    assert checked.returncode == 0 and "no problem found" in checked.stdout
    (tmp_path / "text.txt").write_text("The caves of Orsel. " * 300)
    shards = run("data", "make", "text", tmp_path / "shards", tmp_path / "text.txt", "--vocab", 300)
    assert shards.returncode == 0 and "begins" in shards.stdout
    (tmp_path / "own.csv").write_text("subject,object,prompt\nZorvia,Bay,The capital of {} is\n")
    shown = run("data", "show", tmp_path / "own.csv")
    assert shown.returncode == 0 and "The capital of Zorvia is Bay" in shown.stdout
    train = tmp_path / "corpus" / "train.jsonl"
    test = tmp_path / "corpus" / "d2p_same.jsonl"
    lines = train.read_text().splitlines()
    train.write_text("\n".join([test.read_text().splitlines()[0], *lines[1:]]) + "\n")
    leaky = run("data", "check", tmp_path / "corpus")
    assert leaky.returncode == 1 and "a test prompt stands in the training set" in leaky.stdout


def test_info():
    done = run("info", "1028M", "--causal")
    assert done.returncode == 0
    assert "1,142,365,952" in done.stdout and "4.57 GB float32" in done.stdout
    assert "sequential: RMS norm, rotary positions, SwiGLU" in done.stdout
    pythia = run("info", "tiny-pythia").stdout
    assert "bidirectional transformer" in pythia and "parallel: layer norm, rotary" in pythia


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("info", "1024M"), "error: no model '1024M': it is not a file or folder"),
        (("info", "1024M"), "did you mean '1028M'"),
        (("study", "--facts", "1", "--out", "{}/run"), "error: 1 facts a group were asked for"),
        (("data", "show", "{}/absent.csv"), "absent.csv is not there"),
        (("data", "make", "reversal", "{}"), "already exists and would be overwritten"),
        (("data", "make", "text", "{}/x", "{}/file.pdf"), "text is read from .txt, .md and .jsonl"),
        (("inform",), "No such command 'inform'"),
        (("study", "--facts", "many"), "Invalid value for '--facts'"),
        (("study", "--fact", "3"), "No such option"),
    ],
)
def test_mistakes_are_sentences(tmp_path, words, said):
    (tmp_path / "file.pdf").write_text("x")
    done = run(*(word.format(tmp_path) for word in words))
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.pdf"]
