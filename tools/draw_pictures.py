"""What documents show, drawn anew: `make pictures`, or python tools/draw_pictures.py [TOOL …].

README's animation and figure, the explorer's screenshots (with Debian's chromium) and the notebook
of the tutorial. docs/pictures.json has a digest of what each was drawn of, and a test finds those
that are older than that.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "pictures.json"
PAIR = "unmask/assets/reversal-*/model.safetensors"
SHOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "draw_unmasking.py": {
        "docs/unmasking.svg": (PAIR,),
        "docs/recall.png": ("unmask/assets/results/recall-berglund.csv",),
    },
    "draw_explorer.py": {
        name: (PAIR, "unmask/explorer/static/*")
        for name in ("docs/explorer-write-1440.png", "docs/explorer-trace-1440-dark.png")
    },
    "write_notebook.py": {"docs/tutorial.ipynb": ("docs/tutorial.md",)},
}
"""What each tool draws, and the files that it shows; the tool itself is one of them."""
WORDS = {"write_notebook.py": ("--run",)}


def digest_shown(tool: str, picture: str) -> str:
    """A digest of the tool, and of what it shows in this picture."""
    digest = hashlib.sha256((ROOT / "tools" / tool).read_bytes())
    for pattern in SHOWN[tool][picture]:
        files = sorted(ROOT.glob(pattern))
        assert files, pattern
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def main() -> None:
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    for tool in sys.argv[1:] or SHOWN:
        command = [sys.executable, str(ROOT / "tools" / tool), *WORDS.get(tool, ())]
        subprocess.run(command, cwd=ROOT, check=True)
        record |= {picture: digest_shown(tool, picture) for picture in SHOWN[tool]}
        RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
