"""Which cards a process finds: by the driver's library, by its program, by its files; and those it was given."""

import ctypes

import pytest

from ludus.processes.cards import Card, find_cards

GIB = 2**30


class Driver:
    """NVML of cards with these sizes, as far as it is asked."""

    def __init__(self, *sizes, fails_at=None):
        self.sizes, self.fails_at, self.is_open = sizes, fails_at, False

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
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, buffer, length):  # noqa: N802
        assert length == len(buffer)
        buffer.value = b"GPU-%04d-feed" % (handle.value - 1)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):  # noqa: N802
        assert ctypes.sizeof(memory._obj) == 24
        memory._obj.total = self.sizes[handle.value - 1]
        memory._obj.free = self.sizes[handle.value - 1] - GIB
        return self._said("memory")


def found(environ=None, driver=None, root=None):
    extra = {} if root is None else {"root": root}
    return find_cards(environ or {}, nvml=lambda: driver, **extra)


def test_the_driver_tells_what_there_is(tmp_path):
    """Every card with all its memory and what is free of it; the driver is let go of afterwards."""
    driver = Driver(80 * GIB, 24 * GIB)
    assert found(driver=driver, root=tmp_path) == (Card("0", 80 * GIB, 79 * GIB), Card("1", 24 * GIB, 23 * GIB))
    assert not driver.is_open


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        ("GPU-0001", ["GPU-0001"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["0"]),
        (" 0 , 1 ", ["0", "1"]),
    ],
)
def test_what_was_given_to_a_process_is_all_it_sees(tmp_path, visible, names):
    """CUDA_VISIBLE_DEVICES chooses and orders, by number or by uuid; after one that there is not nothing is seen."""
    cards = found({"CUDA_VISIBLE_DEVICES": visible}, Driver(80 * GIB, 24 * GIB), tmp_path)
    assert [card.name for card in cards] == names
    assert all(card.num_bytes == (24 if "1" in card.name else 80) * GIB for card in cards)


@pytest.mark.parametrize("fails_at", ["init", "count"])
def test_a_driver_that_fails_has_no_cards(tmp_path, fails_at):
    """Nothing is raised: a machine may have the library and no driver."""
    assert found(driver=Driver(GIB, fails_at=fails_at), root=tmp_path) == ()


def test_a_card_that_does_not_tell_its_memory_is_a_card(tmp_path):
    """As one that shares the memory of its host."""
    assert found(driver=Driver(GIB, fails_at="memory"), root=tmp_path) == (Card("0", None, None),)


def test_a_part_of_a_card_is_taken_as_it_was_given(tmp_path):
    """MIG's names are none of the driver's list."""
    assert found({"CUDA_VISIBLE_DEVICES": "MIG-11"}, Driver(GIB), tmp_path) == (Card("MIG-11", None),)


def test_windows_linux_has_the_program_alone(tmp_path):
    """Without the driver's files, and without the library on its path, nvidia-smi is asked where Windows puts it."""
    program = tmp_path / "usr/lib/wsl/lib/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "GPU-aaaa, 24564, 24000"\necho "GPU-bbbb, [N/A], [N/A]"\n')
    program.chmod(0o755)
    assert found(root=tmp_path) == (Card("0", 24564 * 2**20, 24000 * 2**20), Card("1", None, None))


def test_files_of_the_driver_count_cards(tmp_path):
    """In a container without library and program: by the driver's list, or by the device files."""
    for number in range(3):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / f"dev/nvidia{number}").touch()
    (tmp_path / "dev/nvidiactl").touch()
    assert found(root=tmp_path) == (Card("0", None), Card("1", None), Card("2", None))
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert found(root=tmp_path) == (Card("0", None),)
    assert found({"CUDA_VISIBLE_DEVICES": "4"}, root=tmp_path / "nothing") == (Card("4", None),)


def test_a_machine_without_cards_has_none(tmp_path):
    """And the real probe says so here, or finds real ones."""
    assert found(root=tmp_path) == ()
    assert all(card.num_bytes is None or card.num_bytes > 0 for card in find_cards({}))
