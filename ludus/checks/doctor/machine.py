"""Reports on this machine: its hardware, what Ludus uses of it, and what would make Ludus faster.

Knows: the choices of other modules: cores, compilers, types, cards.  Knows not: how they choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ludus.checks.doctor.demo import DemoSpeed, measure_demo
from ludus.errors import BackendError
from ludus.kernels.build import Build, build_library, build_of, find_compiler, source_names, version_of
from ludus.machine import Machine
from ludus.models.device import choose_device, has_apple_gpu
from ludus.models.dtype import ProductTimes, caps_set, choose_dtype, product_times
from ludus.models.threads import choose_threads

_DRIVER = Path("/dev/nvidiactl")
_INSTALL_COMPILER = "install g++ (Debian: apt install g++; macOS: xcode-select --install)"


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The machine, and Ludus's choices on it."""

    machine: Machine
    torch: str
    """Version of torch."""
    capability: str
    """The instruction set of torch's own kernels here."""
    threads: int
    dtype: str
    """The choice of `model.dtype: auto`."""
    device: str
    """The choice of `model.device: auto`."""
    products: ProductTimes
    compiler: str | None
    """First line of its version. None: there is no compiler."""
    kernels: dict[str, Build | str]
    """How each kernel library was built, or why it was not, by name."""
    cards: tuple[str, ...]
    demo: DemoSpeed | None
    """How fast `make demo` would be. None: it would compute on a card, for which this is not known."""
    advice: tuple[str, ...]
    """What would make it faster, the largest effect first."""


def examine_machine() -> MachineReport:
    """Examine the machine, with compilations and measurements that were not made yet: a minute the first time."""
    machine, threads, device = Machine.look(), choose_threads(), choose_device("auto")
    kernels = {name: _built(name) for name in source_names()}
    cards = tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    products = product_times()
    try:
        compiler = version_of(find_compiler()).partition("\n")[0]
    except BackendError:
        compiler = None
    dtype = choose_dtype(device)
    return MachineReport(
        machine=machine,
        torch=torch.__version__,
        capability=torch.backends.cpu.get_cpu_capability(),
        threads=threads,
        dtype=dtype,
        device=str(device),
        products=products,
        compiler=compiler,
        kernels=kernels,
        cards=cards,
        demo=measure_demo(getattr(torch, dtype)) if device.type == "cpu" else None,
        advice=tuple(_advice(machine, threads, products, kernels, has_card=bool(cards))),
    )


def _built(name: str) -> Build | str:
    try:
        return build_of(build_library(name))
    except BackendError as error:
        return str(error)


def _advice(
    machine: Machine, threads: int, products: ProductTimes, kernels: dict[str, Build | str], *, has_card: bool
) -> Iterator[str]:
    if not has_card and _DRIVER.exists():
        why = "finds none" if torch.version.cuda else "was built without CUDA"
        yield f"there is an NVIDIA card, and this torch {why}: install the torch that its page names for your driver"
    if has_apple_gpu():
        yield "there is an Apple GPU: try model.device=mps, which nobody has measured yet"
    reasons = dict.fromkeys(each for each in kernels.values() if isinstance(each, str))
    yield from (
        f"our kernels are missing, which takes about twice as long: {why}; {_INSTALL_COMPILER}" for why in reasons
    )
    costs = (each.cost for each in kernels.values() if isinstance(each, Build))
    yield from dict.fromkeys(cost for cost in costs if cost is not None)
    if caps := caps_set():
        yield f"{' '.join(caps)} keeps torch from instructions that this processor may have: unset it"
    if machine.workers < machine.cores:
        yield f"its control group allows {machine.quota:g} of {machine.cores} cores: give the container more"
    elif threads < machine.most_threads and "OMP_NUM_THREADS" in os.environ:
        number = os.environ["OMP_NUM_THREADS"]
        yield f"OMP_NUM_THREADS={number} of {machine.most_threads} cores: unset it to use those that are free"
    elif machine.threads < machine.most_threads:
        yield f"others keep {machine.busy:.1f} of {machine.cores} cores busy: end them, or begin when they have ended"
    if products.dtype == "float32":
        yield (
            f"bf16 takes {products.ratio:.1f} times as long as fp32 here, so fp32 it is, in twice the memory: a "
            "processor with AVX-512 BF16 or AMX, or a card, would train several times as fast"
        )
