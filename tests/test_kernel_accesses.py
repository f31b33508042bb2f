"""Check all addresses that the kernels read or write in Triton's interpreter."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton supports only x86-64 Linux")
from test_decoder_kernels import (  # noqa: F401, autouse fixtures
    DTYPES,
    assert_parity,
    guarded_buffers,
    interpreted_only,
    kernels_run_anywhere,
    language_patched_once,
)
from test_fast_decoder import problem

from fast_decoder import graphs

pytestmark = [pytest.mark.usefixtures("one_thread"), interpreted_only]
SECTOR = 32  # bytes per sector; a GPU caches whole sectors


@pytest.mark.parametrize("kernel_size", [5, 15])
def test_dependent_launches_read_only_finished_values(kernel_size, monkeypatch):
    """The test checks the values that a kernel reads before it waits for the previous launch.

    The previous launch may still be running. Therefore the kernel must not read values that the
    previous launch or its own launch writes. All earlier launches have ended, but the cache of a
    multiprocessor may contain values from before these launches. Loads with the modifier `.cg`
    bypass this cache.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    kernels, waited, early_bytes = graphs._kernels(), True, 0
    # Addresses that the previous launch and this launch have written.
    written: list[set[int]] = [set(), set()]
    cached: set[int] = set()  # memory sectors that the multiprocessor has read
    changed: set[int] = set()  # cached sectors that were written after they were read
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def addresses(pointers, mask) -> set[int]:
        return set(pointers.data[mask.data].tolist())

    def recording_load(self, pointers, mask, other, cache_modifier, *args):
        nonlocal early_bytes
        read = addresses(pointers, mask)
        if not waited:
            assert not read & set.union(*written), "read before the wait"
            early_bytes += len(read)
        if cache_modifier is None or cache_modifier.name != "CG":
            sectors = {address // SECTOR for address in read}
            assert waited or not sectors & changed, "an old value may be cached"
            cached.update(sectors)
        return load(self, pointers, mask, other, cache_modifier, *args)

    def recording_store(self, pointers, value, mask, *args):
        places = addresses(pointers, mask)
        written[1].update(places)
        changed.update(cached.intersection(address // SECTOR for address in places))
        return store(self, pointers, value, mask, *args)

    def wait(*_):
        nonlocal waited
        waited = True

    def begin(self, *place):
        nonlocal waited
        waited = False
        if not any(place):  # the first kernel program of a launch
            written[:] = written[1], set()
        set_grid(self, *place)

    def launch_graph(self, num_steps):
        written[:] = set(), set()  # each graph runs after the previous graph has ended
        cached.clear()
        changed.clear()
        launch(self, num_steps)

    set_grid, launch = InterpreterBuilder.set_grid_idx, graphs._Loop._launch
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", recording_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", recording_store)
    # The interpreter calls set_grid_idx at the start of a kernel program.
    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", begin)
    monkeypatch.setattr(kernels, "_wait", wait)
    monkeypatch.setattr(graphs._Loop, "_launch", launch_graph)
    sizes = {"attention_location_kernel_size": kernel_size}
    # The test uses float32, because kernels on a GPU do not support float64.
    assert_parity(problem(((7, 6), (3, 5)), torch.float32, **sizes))
    assert early_bytes > 0


def test_kernels_never_read_beyond_the_buffers(monkeypatch):
    """Even kernel programs without a clip, symbol or decoder step must not read beyond the
    buffers."""
    from triton.runtime.interpreter import InterpreterBuilder

    load, write, ranges, count = InterpreterBuilder.create_masked_load, graphs._Loop._write, [], 0

    def recording_write(self, entries):
        buffers = [self.table, *(x for x in entries.values() if isinstance(x, torch.Tensor))]
        ranges[:] = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in buffers]
        write(self, entries)

    def checked_load(self, pointers, mask, *args):
        nonlocal count
        places = pointers.data[mask.data].astype(int)
        within = [(places >= start) & (places < end) for start, end in ranges]
        assert np.any(within, axis=0).all(), "read beyond the buffers"
        count += len(places)
        return load(self, pointers, mask, *args)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", checked_load)
    monkeypatch.setattr(graphs._Loop, "_write", recording_write)
    assert_parity(problem(((7, 6), (3, 5)), DTYPES[0]))
    assert count > 0


@pytest.mark.parametrize("operands", [torch.float32, torch.bfloat16])
def test_kernels_access_only_the_table_of_decoder_steps_when_the_table_is_empty(
    operands, monkeypatch
):
    """While a CUDA graph is being captured, the table does not contain addresses of buffers yet."""
    from triton.runtime.interpreter import InterpreterBuilder

    case = problem(((7, 6), (3, 5)), attention_rnn_dim=32, decoder_rnn_dim=32)
    found = graphs.graphs_for(case.decoder, case.memory, operands, case.dropout_masks)
    count = 0
    loops = [loop for loop in vars(found).values() if hasattr(loop, "table")]
    assert len(loops) == 4

    def checked(name, place_of_mask):
        function = getattr(InterpreterBuilder, name)

        def check(self, pointers, *args):
            nonlocal count
            places = pointers.data[args[place_of_mask].data].astype(int) - table.data_ptr()
            assert ((places >= 0) & (places < table.numel() * 8)).all(), "not in the table"
            count += len(places)
            return function(self, pointers, *args)

        monkeypatch.setattr(InterpreterBuilder, name, check)

    checked("create_masked_load", 0)
    checked("create_masked_store", 1)
    for loop in loops:
        table, count = loop.table, 0
        loop._launch(2)
        assert count > 0, "nothing was launched"
