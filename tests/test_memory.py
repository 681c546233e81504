"""Memory that is not needed goes back to the system; weights come back unharmed."""

import ctypes
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ucofia import memory

pytestmark = pytest.mark.skipif(not memory.SMAPS.exists(), reason="only Linux tells")


def test_pages_of_mapped_weights_are_given_back_and_come_again(tmp_path: Path) -> None:
    weights = torch.randn(1 << 20)
    save_file({"x": weights}, tmp_path / "model.safetensors")
    mapped = load_file(tmp_path / "model.safetensors")["x"]
    assert torch.equal(mapped, weights)  # every page has been read
    assert memory.release_weights() >= 4 << 20
    assert torch.equal(mapped, weights)


def test_weights_that_were_written_to_are_left_alone(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1 << 20)}, tmp_path / "model.safetensors")
    mapped = load_file(tmp_path / "model.safetensors")["x"]
    mapped += 1
    memory.release_weights()
    assert mapped.min() == 1


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc")
def test_freed_pages_inside_the_heap_are_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    size, count = 100_000, 500
    blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last one keeps glibc from giving back what lies below
        libc.free(block)
    before = own_bytes()
    memory.release_heap()
    assert before - own_bytes() > size * count // 2
    libc.free(blocks[-1])


def own_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
