"""What is free on a device."""

import pytest
import torch

from unmask.base.devices import free_bytes

GB = 10**9


@pytest.mark.parametrize(
    ("share", "free", "expected"),
    [
        (1.0, 90, 95),  # what torch holds in reserve is free
        (0.25, 90, 20),  # 25 of 100, of which 5 are used
        (0.25, 10, 15),  # others have taken the rest
    ],
)
def test_a_process_keeps_to_its_share_of_a_gpu(monkeypatch, share, free, expected):
    known = {
        "memory_allocated": 5 * GB,
        "memory_reserved": 10 * GB,
        "mem_get_info": (free * GB, 100 * GB),
    }
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)

    def find_share(device):  # as torch: a number or nothing, and no `cuda` without one
        assert device is None or device == 0
        return share

    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", find_share)
    for device in ("cuda", "cuda:0"):
        assert free_bytes(torch.device(device)) == expected * GB


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_share_of_a_gpu_is_found(device):
    """The calls of torch that the test above stands in for."""
    total = torch.cuda.mem_get_info(0)[1]
    assert 0 < free_bytes(torch.device(device)) <= total
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        assert 0 < free_bytes(torch.device(device)) <= total // 4
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
