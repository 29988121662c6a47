"""`python -m tests.hostile attempts`, `defects` or `kills`: how hostile inputs end, counted."""

import importlib
import sys

VERBS = ("attempts", "defects", "kills")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in VERBS:
        sys.exit(f"expected one of {', '.join(VERBS)} after `python -m tests.hostile`")
    sys.exit(importlib.import_module(f"tests.hostile.{sys.argv[1]}").main(sys.argv[2:]))
