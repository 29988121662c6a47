"""One `device` setting for CPU, CUDA and MPS, and the dtypes by name."""

import os
import platform
from pathlib import Path

import torch

from unmask.base.errors import UserError, suggest

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def read_ranks() -> tuple[int, int, int]:
    """This process among those that torchrun started: its rank, how many, its rank on its machine.

    (0, 1, 0) where torchrun started none.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    given = {name: os.environ[name] for name in names if name in os.environ}
    are_numbers = all(text.isdecimal() and len(text) < 10 for text in given.values())
    if are_numbers:
        rank, world, local = (int(given.get(n, n == "WORLD_SIZE")) for n in names)
        if rank < world and (world == 1 or "RANK" in given):
            return rank, world, local
    shown = ", ".join(f"{name}={text!r:.40}" for name, text in given.items())
    raise UserError(
        f"the environment says {shown}: expected whole numbers with RANK below WORLD_SIZE, as "
        "torchrun sets them; start the command with torchrun, or unset them to work alone."
    )


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """The device of that name; "auto" is the first of CUDA, MPS and CPU that is there.

    Of several, separated by commas, it is the first.
    """
    if isinstance(name, torch.device):
        return name
    if "," in name:
        return resolve_devices(name)[0]
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device {name!r} is unknown: expected auto, cpu, cuda, cuda:N or mps.")
    missing = {
        "cuda": not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count(),
        "mps": not torch.backends.mps.is_available(),
    }
    if missing.get(device.type):
        raise UserError(
            f"device {name!r} is not on this machine: use device auto, or cpu to run without it."
        )
    return device


def resolve_devices(names: str) -> list[torch.device]:
    """The devices of names separated by commas, such as "cuda:0,cuda:1,cpu"."""
    devices = [resolve_device(name.strip()) for name in names.split(",") if name.strip()]
    if len(devices) < 2:
        raise UserError(f"devices {names!r}: expected two or more, separated by commas.")
    # Weights know the number of their GPU.
    return [
        torch.device("cuda", each.index or 0) if each.type == "cuda" else each for each in devices
    ]


def resolve_dtype(name: str | torch.dtype) -> torch.dtype:
    """The dtype of that name."""
    if isinstance(name, torch.dtype) and name.is_floating_point:
        return name
    if name not in DTYPES:
        raise UserError(f"dtype {name!r} is unknown: {suggest(str(name), DTYPES)}")
    return DTYPES[name]


def name_dtype(dtype: torch.dtype) -> str:
    """What `resolve_dtype` takes for it."""
    return str(dtype).removeprefix("torch.")


def choose_dtype(name: str, device: str | torch.device, on_gpu: str, elsewhere: str) -> str:
    """The dtype of that name; "auto" is `on_gpu` on CUDA, else `elsewhere`."""
    if name != "auto":
        return name
    return on_gpu if resolve_device(device).type == "cuda" else elsewhere


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16; without them torch is a hundred times slower.

    CPUs say so in their flags (Linux); others are taken to have none.
    """
    if device.type != "cpu":
        return True
    flags = Path("/proc/cpuinfo")
    return flags.is_file() and "bf16" in flags.read_text()


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device, in bytes; None where the system does not tell.

    On CUDA what torch holds in reserve counts as free, and what is beyond this process's share
    (`torch.cuda.set_per_process_memory_fraction`) does not.
    """
    if device.type == "cuda":
        used = torch.cuda.memory_allocated(device)
        free, total = torch.cuda.mem_get_info(device)
        share = torch.cuda.get_per_process_memory_fraction(device.index)
        return min(free + torch.cuda.memory_reserved(device) - used, int(share * total) - used)
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def describe_device(device: str | torch.device) -> str:
    """The chip and the version of torch, for the record of a measurement."""
    device = resolve_device(device)
    chip = platform.processor() or platform.machine()
    if device.type == "cuda":
        chip = torch.cuda.get_device_name(device)
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"{chip}{threads}, torch {torch.__version__}"
