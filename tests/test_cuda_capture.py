"""cuda_capture.py: what a capture leaves behind, whether it fails or not."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from cuda_capture import captured

STREAM = SimpleNamespace(device=SimpleNamespace(index=0))  # a stream of the first GPU


class Captures:
    """Stands for torch.cuda while a graph is captured, as torch 2.11 does it: the end of a capture
    that broke raises before it ends what the capture began."""

    def __init__(self, monkeypatch, ends_pool_itself=False):
        self.streams, self.pools = ["the usual stream"], []
        self.generator = SimpleNamespace(state=SimpleNamespace(capturing=False))
        self.generator.graphsafe_get_state = lambda: SimpleNamespace(state=self.generator.state)
        self.generator.graphsafe_set_state = lambda other: setattr(
            self.generator, "state", other.state
        )
        self.ends_pool_itself = ends_pool_itself
        for name, stand_in in {
            "CUDAGraph": SimpleNamespace,
            "graph_pool_handle": lambda: (0, 1),
            "default_generators": [self.generator],
            "stream": self.stream,
            "graph": self.graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)
        own = SimpleNamespace(state=SimpleNamespace(capturing=False))
        monkeypatch.setattr(torch, "Generator", lambda device: own)

    @contextlib.contextmanager
    def stream(self, stream):
        before = list(self.streams)
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        state = self.generator.state
        self.streams.append(stream)
        self.pools.append(pool)
        state.capturing = True
        try:
            yield
        except Exception:
            if self.ends_pool_itself:
                self.end_pool(0, pool)
            raise RuntimeError("operation failed due to a previous error during capture") from None
        self.pools.remove(pool)
        self.streams.pop()
        state.capturing = False

    def end_pool(self, device, pool):
        if pool not in self.pools:
            raise RuntimeError("not currently recording to mempool_id")
        self.pools.remove(pool)


@pytest.mark.parametrize("ends_pool_itself", [False, True])
def test_failed_captures_leave_everything_as_it_was(monkeypatch, ends_pool_itself):
    cuda = Captures(monkeypatch, ends_pool_itself)
    before = cuda.generator.state

    def broken():
        assert cuda.streams[-1] == STREAM
        raise ValueError("no programmatic launch")

    with pytest.raises(RuntimeError, match="previous error") as raised:
        captured(broken, STREAM)
    assert "no programmatic launch" in str(raised.value.__context__)
    assert cuda.generator.state is before
    assert not before.capturing
    assert (cuda.streams, cuda.pools) == (["the usual stream"], [])


def test_captures_never_touch_the_generator(monkeypatch):
    cuda = Captures(monkeypatch)
    before, seen = cuda.generator.state, []
    _, result = captured(lambda: seen.append(cuda.generator.state is before), STREAM)
    assert result is None
    assert seen == [False]
    assert cuda.generator.state is before
    assert not before.capturing
    assert (cuda.streams, cuda.pools) == (["the usual stream"], [])
