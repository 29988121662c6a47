"""Golden losses of twenty steps of every kind: `make golden` writes them anew.

A change that should not move numbers must leave `golden.json` as it is; one that should is
reviewed by its difference.
"""

from pathlib import Path

from tests.training.runs import make_trainer, take_steps
from unmask.base.files import write_json

FILE = Path(__file__).with_name("golden.json")
STEPS = 20
TOY = {
    "data": {"source": "toy", "context": 6},
    "network": {"preset": "tiny", "changes": {"time": True}, "scale": 2.0},
}
RUNS: dict[str, dict] = {
    "masked": {"optimiser": {"ema": 0.9}, "batch": {"micro": 4}, "objective": {"short": 0.2}},
    "masked answers": {"objective": {"name": "llada", "response_only": True, "drop_prompt": 0.3}},
    "causal": {"kind": "causal", "objective": {"filling": False}},
    "uniform": {"kind": "uniform"} | TOY,
    "hybrid": {"kind": "hybrid", "noise": {"share_start": 0.5}} | TOY,
    "gaussian": {"kind": "gaussian"} | TOY,
}


def measure(name: str) -> list[float]:
    """The loss of each step."""
    return take_steps(make_trainer(**RUNS[name]), STEPS)


if __name__ == "__main__":
    write_json(FILE, {name: measure(name) for name in RUNS})
    print(f"wrote {FILE}")
