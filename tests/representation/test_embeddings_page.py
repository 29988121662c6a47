"""The page on embeddings: planted bindings stand in its table, parts that stayed do not."""

from tests.representation.facts import make_facts, make_model
from tests.representation.test_moved_rows import move
from tests.scripts import load_script
from unmask.data.facts import write_facts
from unmask.net.loading import save

moves = load_script("paper/embeddings.py")
page = load_script("paper/report_embeddings.py")


def test_rows_of_every_way_of_training(tmp_path):
    model = make_model(layers=2)
    save(model, tmp_path / "start")
    for table in ("embedding", "head"):
        for seed, bound in enumerate((True, False)):
            save(move(model, table, bound), tmp_path / table / f"seed-{seed}")
    write_facts(tmp_path / "facts.jsonl", make_facts())
    words = [f"{table}={tmp_path / table}/seed-*" for table in ("embedding", "head")]
    words += ["--start", str(tmp_path / "start"), "--data", str(tmp_path / "facts.jsonl")]
    moves.main([*words, "--permutations", "199", "--out", str(tmp_path / "moves.json")])
    page.main([str(tmp_path / "moves.json"), "--page", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = {tuple(row[i].strip("*") for i in (0, 1, 3, 4)): row[6].strip("*") for row in rows[2:]}
    # What stayed as it was has no rows; each way of training has two seeds and two likenesses.
    assert {(way, table) for way, _, table, _ in cells} == {("embedding",) * 2, ("head",) * 2}
    assert len(cells) == 2 * 2 * 2
    for table in ("embedding", "head"):
        bound, loose = (
            float(cells[table, seed, table, "reciprocal rank"].split()[0]) for seed in ("0", "1")
        )
        assert bound == 1.0 > loose
