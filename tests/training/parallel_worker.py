"""What each of several processes does in the tests of `unmask.training.parallel`.

torchrun … parallel_worker.py FOLDER …: trains under ddp and fsdp, in folders of these names.
"""

import sys
from pathlib import Path

from tests.training.runs import make_recipe
from unmask.training.build import prepare_job
from unmask.training.loop import run_loop
from unmask.training.parallel import join
from unmask.training.trainer import Trainer

SETTINGS: dict = {
    "data": {"source": "toy", "context": 8},
    "batch": {"micro": 2},
    "budget": {"steps": 6},
    "optimiser": {"ema": 0.9},
    "objective": {"name": "mdlm", "filling": False},
    "cadence": {"checkpoint": 3},
}

if __name__ == "__main__":
    with join("cpu") as world:
        for folder in map(Path, sys.argv[1:]):
            for how in ("ddp", "fsdp"):
                recipe = make_recipe(**SETTINGS | {"machine": {"parallel": how}})
                run_loop(Trainer(prepare_job(recipe, world)), folder / how)
