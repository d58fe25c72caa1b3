"""Announcing that memory will be filled changes nothing but where its pages come from."""

import mmap

import numpy as np
import pytest

from mlx_dsv4.cache.pages import expect_filling


@pytest.mark.parametrize("n_bytes", [0, 100, 9 << 20])
def test_memory_that_will_be_filled_keeps_what_it_holds(n_bytes: int) -> None:
    memory = np.full(n_bytes, 7, np.uint8)
    expect_filling(memory)
    assert (memory == 7).all()


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    expect_filling(np.zeros(9 << 20, np.uint8))
