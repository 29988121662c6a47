"""Memory that a process keeps: pages that the system has to clear, counted."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from unmask.base.memory import keep_memory

def count(size, times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        blocks = [bytearray(size) for _ in range(4)]  # of which the first is freed last
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_memory()
print(count(2**23, 10), count(2**26, 2))
"""
PAGES = 4 * 2**23 // 4096


def count_new_pages(which: str) -> tuple[int, int]:
    words = [sys.executable, "-c", SCRIPT, which]
    kept, large = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return int(kept), int(large)


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_what_is_freed_is_used_again_and_what_is_large_given_back():
    given_back, kept = count_new_pages("as ever"), count_new_pages("keep")
    assert kept[0] < 1.5 * PAGES < 4 * PAGES < given_back[0], "each page once, and no more"
    assert kept[1] > 4 * PAGES, "blocks of 64 MB do not stay"
