"""How much memory a piece of work takes at worst."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def watch_memory(device: torch.device) -> Generator[Callable[[], int | None]]:
    """A function that tells the bytes held at worst inside the block, beyond those before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
    elif (refs := Path("/proc/self/clear_refs")).exists():
        refs.write_text("5")  # Linux: count the peak anew from here
        before = _resident_peak()
        yield lambda: max(0, _resident_peak() - before)
    else:
        yield lambda: None


def _resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
