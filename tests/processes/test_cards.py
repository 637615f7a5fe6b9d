"""Which cards a process finds: by the driver's library, by its program, by its files; and those it was given."""

import ctypes

import pytest

from ludus.processes.cards import Card, find_cards

GIB = 2**30


class Driver:
    """NVML of cards with these sizes, as far as it is asked.

    models: their names.  parts: of each card the sizes of the parts that MIG makes of it.
    """

    def __init__(self, *sizes, fails_at=None, models=(), parts=None):
        self.sizes, self.fails_at, self.is_open, self.models = sizes, fails_at, False, models
        if parts is not None:
            self.parts = parts
            self.nvmlDeviceGetMigMode = self._mig_mode
            self.nvmlDeviceGetMaxMigDeviceCount = self._most_parts
            self.nvmlDeviceGetMigDeviceHandleByIndex = self._part

    def _said(self, name):
        return 999 if self.fails_at == name else 0

    def nvmlInit_v2(self):  # noqa: N802
        self.is_open = True
        return self._said("init")

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = len(self.sizes)
        return self._said("count")

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle):  # noqa: N802
        handle._obj.value = 100 * (number + 1)
        return 0

    def nvmlDeviceGetUUID(self, handle, buffer, length):  # noqa: N802
        assert length == len(buffer)
        whole, part = divmod(handle.value, 100)
        buffer.value = b"MIG-%04d-%d" % (whole - 1, part - 1) if part else b"GPU-%04d-feed" % (whole - 1)
        return 0

    def nvmlDeviceGetName(self, handle, buffer, length):  # noqa: N802
        buffer.value = self.models[handle.value // 100 - 1].encode() if self.models else b"H100"
        return self._said("name")

    def _mig_mode(self, handle, now, later):
        now._obj.value = bool(self.parts[handle.value // 100 - 1])
        return self._said("mig")

    def _most_parts(self, handle, count):
        count._obj.value = 7
        return 0

    def _part(self, handle, number, part):
        part._obj.value = handle.value + number + 1
        return 0 if number < len(self.parts[handle.value // 100 - 1]) else 6

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802
        assert ctypes.sizeof(memory._obj) == 24
        whole, part = divmod(handle.value, 100)
        memory._obj.total = self.parts[whole - 1][part - 1] if part else self.sizes[whole - 1]
        memory._obj.free = memory._obj.total - GIB
        return self._said("memory")


def found(environ=None, driver=None, root=None):
    extra = {} if root is None else {"root": root}
    return find_cards(environ or {}, nvml=lambda: driver, **extra)


def test_the_driver_tells_what_there_is(tmp_path):
    """Every card with all its memory and what is free of it; the driver is let go of afterwards."""
    driver = Driver(80 * GIB, 24 * GIB)
    assert found(driver=driver, root=tmp_path) == (
        Card("GPU-0000-feed", 80 * GIB, 79 * GIB),
        Card("GPU-0001-feed", 24 * GIB, 23 * GIB),
    )
    assert not driver.is_open


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-0001", [1]),
        ("GPU-0001,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),
        ("0,GPU-0007,1", [0]),
        ("0,,1", [0]),
        (" 0 , 1 ", [0, 1]),
        ("0,1,GPU-0000-feed", []),  # one is named twice
    ],
)
def test_what_was_given_to_a_process_is_all_it_sees(tmp_path, visible, numbers):
    """CUDA_VISIBLE_DEVICES chooses and orders, by number or by uuid; after one that there is not nothing is seen.
    However a card was named, it is known by its uuid."""
    cards = found({"CUDA_VISIBLE_DEVICES": visible}, Driver(80 * GIB, 24 * GIB), tmp_path)
    assert [card.name for card in cards] == [f"GPU-000{number}-feed" for number in numbers]
    assert [card.num_bytes for card in cards] == [(80, 24)[number] * GIB for number in numbers]


def test_cuda_numbers_different_cards_in_its_own_way(tmp_path):
    """The faster first: which of the driver's a number means is not known, unless CUDA is told to count as it does."""
    driver = Driver(24 * GIB, 80 * GIB, models=("L4", "H100"))
    assert found({"CUDA_VISIBLE_DEVICES": "0,GPU-0001"}, driver, tmp_path) == (
        Card("0", None),
        Card("GPU-0001-feed", 80 * GIB, 79 * GIB),
    )
    told = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert found(told, driver, tmp_path) == (Card("GPU-0000-feed", 24 * GIB, 23 * GIB),)
    assert [card.name for card in found({}, driver, tmp_path)] == ["GPU-0000-feed", "GPU-0001-feed"]


def test_parts_of_a_divided_card_are_cards(tmp_path):
    """Each with memory of its own, and instead of the whole; CUDA takes the first for the number of the whole."""
    driver = Driver(80 * GIB, 80 * GIB, parts=((), (40 * GIB, 20 * GIB)))
    whole, first, second = found(driver=driver, root=tmp_path)
    assert (whole, first) == (Card("GPU-0000-feed", 80 * GIB, 79 * GIB), Card("MIG-0001-0", 40 * GIB, 39 * GIB))
    for visible, cards in (("1", [first]), ("GPU-0001", [first]), ("MIG-0001-1,MIG-0001-0", [second, first])):
        assert list(found({"CUDA_VISIBLE_DEVICES": visible}, driver, tmp_path)) == cards
    undivided = Driver(80 * GIB, parts=((),), fails_at="mig")
    assert [card.name for card in found(driver=undivided, root=tmp_path)] == ["GPU-0000-feed"]


@pytest.mark.parametrize("fails_at", ["init", "count"])
def test_a_driver_that_fails_has_no_cards(tmp_path, fails_at):
    """Nothing is raised: a machine may have the library and no driver."""
    assert found(driver=Driver(GIB, fails_at=fails_at), root=tmp_path) == ()


def test_a_card_that_does_not_tell_its_memory_is_a_card(tmp_path):
    """As one that shares the memory of its host."""
    assert found(driver=Driver(GIB, fails_at="memory"), root=tmp_path) == (Card("GPU-0000-feed", None, None),)


def test_a_part_of_a_card_is_taken_as_it_was_given(tmp_path):
    """An older driver's names of MIG's parts are none of the list."""
    assert found({"CUDA_VISIBLE_DEVICES": "MIG-GPU-0000/1/0"}, Driver(GIB), tmp_path) == (
        Card("MIG-GPU-0000/1/0", None),
    )


def test_windows_linux_has_the_program_alone(tmp_path):
    """Without the driver's files, and without the library on its path, nvidia-smi is asked where Windows puts it."""
    program = tmp_path / "usr/lib/wsl/lib/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "GPU-aaaa, 24564, 24000, RTX 4090"\necho "GPU-bbbb, [N/A], [N/A], A"\n')
    program.chmod(0o755)
    assert found(root=tmp_path) == (Card("GPU-aaaa", 24564 * 2**20, 24000 * 2**20), Card("GPU-bbbb", None, None))
    program.write_text('#!/bin/sh\necho "No devices were found"\n')
    assert found(root=tmp_path) == ()


def test_files_of_the_driver_count_cards(tmp_path):
    """In a container without library and program: by the driver's list, or by the device files."""
    for number in range(3):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / f"dev/nvidia{number}").touch()
    (tmp_path / "dev/nvidiactl").touch()
    assert found(root=tmp_path) == (Card("0", None), Card("1", None), Card("2", None))
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert found(root=tmp_path) == (Card("0", None),)
    assert found({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, root=tmp_path) == (Card("GPU-aaaa", None),)
    assert found({"CUDA_VISIBLE_DEVICES": "4"}, root=tmp_path / "nothing") == (Card("4", None),)


def test_a_machine_without_cards_has_none(tmp_path):
    """And the real probe says so here, or finds real ones."""
    assert found(root=tmp_path) == ()
    assert all(card.num_bytes is None or card.num_bytes > 0 for card in find_cards({}))
