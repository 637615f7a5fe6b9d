"""Our kernels in builds of other processors and compilers, beside torch's operations, in turns on this machine.

python bench/kernels.py [--threads N] [--rounds N]

A line is a build; a number is how many times as fast as torch it is, from medians of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from ludus.kernels.build import Compiler, compile_source, source_path
from ludus.kernels.head import Drawn, NativeSoftmax, Slopes
from ludus.kernels.library import ADDRESS, COUNT, DTYPES, SIZE, AttentionRule, load_library
from ludus.kernels.tree import NativeTree
from ludus.models.tree import TorchTree, TreePlan
from ludus.trainer.softmax import TorchSoftmax

BUILDS = {
    "g++ native": ("g++", "-march=native", "-fopenmp"),
    "g++ v3": ("g++", "-march=x86-64-v3", "-fopenmp"),
    "g++ v2": ("g++", "-march=x86-64-v2", "-fopenmp"),
    "clang native, libomp": ("clang++", "-march=native", "-fopenmp"),
    "clang native, our threads": ("clang++", "-march=native", "-fopenmp-simd"),
    "clang v3, our threads": ("clang++", "-march=x86-64-v3", "-fopenmp-simd"),
}
SOURCES = ("linear", "tree", "head")
WIDTH, OUTPUTS, TOKENS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 576, 1536, 512, 9, 3, 64, 49152
Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        libraries = {name: built for name, flags in BUILDS.items() if (built := _build(flags, Path(folder) / name))}
        works = [
            (f"{what} {dtype}".replace("torch.", ""), make(dtype, libraries))
            for what, make in WORKS.items()
            for dtype in (torch.float32, torch.bfloat16)
        ]
        ratios: dict[str, dict[str, float]] = {name: {} for name in libraries}
        for what, variants in works:
            times = _in_turns(variants, given.rounds)
            for name in libraries:
                ratios[name][what] = times["torch"] / times[name]
            print(f"{what:24} torch {times['torch'] * 1e3:.3f} ms", file=sys.stderr)
    print(f"{given.threads} threads, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print("| build | " + " | ".join(what for what, _ in works) + " |")
    print("|---|" + "---|" * len(works))
    for name, row in ratios.items():
        print(f"| {name} | " + " | ".join(f"{row[what]:.2f}" for what, _ in works) + " |")


def _build(flags: tuple[str, ...], folder: Path) -> dict[str, Path] | None:
    compiler = shutil.which(flags[0])
    if compiler is None:
        return None
    folder.mkdir()
    paths = {name: folder / f"{name}.so" for name in SOURCES}
    for name, path in paths.items():
        try:
            compile_source(Compiler((compiler,)), source_path(name), path, [flags[1:]])
        except Exception as error:
            print(f"no {folder.name}: {str(error)[:100]}", file=sys.stderr)
            return None
    return paths


def _in_turns(variants: dict[str, Work], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for round_idx in range(rounds + 2):
        for name, work in variants.items():
            started_at = time.perf_counter()
            work()
            if round_idx > 1:
                taken[name].append(time.perf_counter() - started_at)
    return {name: statistics.median(each) for name, each in taken.items()}


def _product(num_rows: int) -> Callable[[torch.dtype, dict[str, dict[str, Path]]], dict[str, Work]]:
    def make(dtype: torch.dtype, libraries: dict[str, dict[str, Path]]) -> dict[str, Work]:
        x, weight = torch.randn(num_rows, WIDTH).to(dtype), torch.randn(OUTPUTS, WIDTH).to(dtype)
        signature = (ADDRESS, SIZE, ADDRESS, SIZE, ADDRESS, ADDRESS, SIZE, SIZE, SIZE, SIZE, COUNT, COUNT)

        def own(path: Path) -> Work:
            function = load_library(path, {"ludus_linear": signature}).ludus_linear

            def work() -> object:
                out = torch.empty(num_rows, OUTPUTS, dtype=dtype)
                function(
                    *(x.data_ptr(), WIDTH, weight.data_ptr(), WIDTH, None, out.data_ptr(), OUTPUTS),
                    *(num_rows, OUTPUTS, WIDTH, DTYPES[dtype], torch.get_num_threads()),
                )
                return out

            return work

        return {
            "torch": lambda: functional.linear(x, weight),
            **{name: own(each["linear"]) for name, each in libraries.items()},
        }

    return make


def _tree(dtype: torch.dtype, libraries: dict[str, dict[str, Path]]) -> dict[str, Work]:
    q, k, v = (torch.randn(1, heads, TOKENS, HEAD_DIM).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    parents, rule = tuple(range(-1, TOKENS - 1)), AttentionRule(HEAD_DIM**-0.5, None, None)
    forest = TreePlan(parents, tuple(range(TOKENS))).forest

    def both(kernel: NativeTree | TorchTree) -> Work:
        def work() -> object:
            out, kept = kernel.attend(q, k, v, forest, rule)
            return kernel.differentiate(out, q, k, v, kept, forest, rule)

        return work

    return {
        "torch": both(TorchTree(parents)),
        **{name: both(NativeTree(each["tree"])) for name, each in libraries.items()},
    }


def _softmax(dtype: torch.dtype, libraries: dict[str, dict[str, Path]]) -> dict[str, Work]:
    logits = torch.randn(64, VOCABULARY).to(dtype)
    drawn = Drawn(torch.arange(64), torch.ones(64), None)

    def both(kernel: NativeSoftmax | TorchSoftmax) -> Work:
        def work() -> object:
            own = logits.clone()
            _, _, norms = kernel.summarise(own, drawn)
            return kernel.differentiate(own, drawn, Slopes(norms, torch.ones(64)))

        return work

    return {
        "torch": both(TorchSoftmax()),
        **{name: both(NativeSoftmax(each["head"])) for name, each in libraries.items()},
    }


WORKS = {
    **{f"product of {num_rows}": _product(num_rows) for num_rows in (1, 16, 384)},
    "attention, both ways": _tree,
    "softmax, both ways": _softmax,
}

if __name__ == "__main__":
    main()
