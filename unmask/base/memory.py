"""How a process that computes on a processor holds its memory, and how much work takes at worst."""

import ctypes
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
    if (library := _find_glibc()) is not None:
        library.mallopt(_TRIM_THRESHOLD, KEPT)
        library.mallopt(_MMAP_THRESHOLD, LARGE)


@contextmanager
def watch_memory(device: "torch.device") -> Generator[Callable[[], int | None]]:
    """A function that tells the bytes held at worst inside the block, beyond those before it."""
    if device.type == "cuda":
        import torch  # not above: commands ask for their memory before anything heavy is read

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
    elif (refs := Path("/proc/self/clear_refs")).exists():
        if (library := _find_glibc()) is not None:
            library.malloc_trim(0)  # what was freed and kept would hide as much of the work's own
        refs.write_text("5")  # Linux: count the peak anew from here
        before = _resident_peak()
        yield lambda: max(0, _resident_peak() - before)
    else:
        yield lambda: None


def _find_glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") else None


def _resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
