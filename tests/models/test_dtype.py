"""The type that `auto` stands for: by what is measured, and the same from then on."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ludus.machine import Machine
from ludus.models import dtype as module
from ludus.models.dtype import ProductTimes, choose_dtype, product_times, with_dtype
from ludus.models.settings import ModelSettings


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was measured or told before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product_times.cache_clear()
    module._tell.cache_clear()
    yield
    product_times.cache_clear()


@pytest.mark.parametrize(
    ("times", "name"),
    [
        (ProductTimes(1.0, 2.0), "bfloat16"),
        (ProductTimes(2.0, 2.0), "bfloat16"),
        (ProductTimes(2.1, 2.0), "float32"),
    ],
)
def test_the_faster_type_is_chosen_and_a_slow_bf16_is_told(
    times: ProductTimes, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """bf16 unless fp32 is faster, which a warning says, once in a process."""
    monkeypatch.setattr(module, "product_times", lambda: times)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert choose_dtype(torch.device("cpu")) == name
    assert caplog.text.count("bf16 products take") == (name == "float32")


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_a_card_that_computes_no_bf16_takes_fp16(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which a warning says, once in a process; torch itself would emulate bf16 there."""
    module._of_card.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert choose_dtype(torch.device("cuda", 0)) == name
    assert caplog.text.count("T4, of compute capability 7.5, computes no bf16") == (name == "float16")
    module._of_card.cache_clear()


def test_what_was_measured_once_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later process reads it; what is damaged is measured again; what another process has measured first counts."""
    measured = [ProductTimes(3.0, 1.0), ProductTimes(1.0, 3.0)]
    monkeypatch.setattr(module, "_measure", lambda: measured.pop(0))
    assert product_times().ratio == 3.0
    product_times.cache_clear()
    assert product_times().ratio == 3.0
    (path,) = (tmp_path / "ludus" / "machine").iterdir()
    path.write_text("{}")
    product_times.cache_clear()
    assert product_times().ratio == 1 / 3
    path.unlink()
    product_times.cache_clear()

    def slower() -> ProductTimes:
        path.write_text(json.dumps({"bfloat16_s": 5.0, "float32_s": 1.0}))
        return ProductTimes(1.0, 1.0)

    monkeypatch.setattr(module, "_measure", slower)
    assert product_times().ratio == 5.0
    assert list(path.parent.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is measured in each process then."""
    monkeypatch.setattr(module, "_measure", lambda: ProductTimes(1.0, 2.0))
    (tmp_path / "file").write_text("")
    assert product_times(tmp_path / "file").dtype == "bfloat16"


def test_what_is_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured where the settings say which."""
    monkeypatch.setattr(module, "_measure", lambda: pytest.fail("measured"))
    settings = ModelSettings(dtype="float16")
    assert with_dtype(settings) is settings


def test_without_avx512_it_is_fp32(tmp_path: Path) -> None:
    """torch emulates bf16 below AVX-512, at a small part of fp32's speed; the cap is part of the key."""
    if "avx512f" not in Machine.look(seconds=0).instructions:
        pytest.skip("this processor has no AVX-512 to hide")
    script = "import torch; from ludus.models.dtype import choose_dtype; print(choose_dtype(torch.device('cpu')))"
    caps = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    names = []
    for environment in ({}, caps):
        own = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment}
        done = subprocess.run(
            [sys.executable, "-c", script], env=own, capture_output=True, text=True, check=True, timeout=60
        )
        names.append(done.stdout.strip())
    assert names[1] == "float32"
    assert len(list((tmp_path / "ludus" / "machine").iterdir())) == 2
