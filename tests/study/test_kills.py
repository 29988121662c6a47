"""A study killed at random moments and taken up again ends with the same numbers."""

import random
import subprocess
import sys
import time

import pytest

from tests.study.test_pipeline import read_numbers
from unmask.study.pipeline import PAGE, StudyRun


@pytest.mark.prove
def test_kills(finished, place, tmp_path):
    out = tmp_path / "run"
    begin = [sys.executable, "-m", "unmask", *place.words("--out", out, "--device", "cpu")]
    resume = [sys.executable, "-m", "unmask", "study", "--resume", "--out", str(out)]
    moments = random.Random(0)
    for _ in range(5):
        process = subprocess.Popen(begin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(moments.uniform(2.0, 12.0))
        process.kill()
        process.communicate()
    done = subprocess.run(
        resume if (out / "run.json").is_file() else begin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert read_numbers(StudyRun(out)) == read_numbers(finished)
    assert (out / PAGE).is_file()
