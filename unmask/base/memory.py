"""How a process that computes on a processor holds its memory."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these options of glibc's `mallopt`."""
KEPT = 2**30
"""Bytes of freed memory that a process keeps at most."""
LARGE = 2**25
"""Bytes above which memory is always given back; glibc takes no larger number."""


def keep_memory() -> None:
    """Have freed memory used again, where glibc would give it back to the system each time.

    Every tensor of some megabytes is new memory otherwise, which the system clears page by page:
    a fifth to a fourth of the processor's time of a small network's likelihoods and knock-out.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_TRIM_THRESHOLD, KEPT)
        library.mallopt(_MMAP_THRESHOLD, LARGE)
