"""cuda_capture.py: what a capture leaves behind, whether it fails or not."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from cuda_capture import captured

STREAM = SimpleNamespace(device=SimpleNamespace(index=0))  # a stream of the first GPU
USUAL = {"streams": ["usual"], "pools": [], "generator": "usual"}


@pytest.fixture
def cuda(monkeypatch):
    """Stands for torch.cuda while a graph is captured, as torch 2.11 does it: the end of a capture
    that broke raises before it ends what the capture began."""
    now = SimpleNamespace(streams=["usual"], pools=[], generator="usual")

    @contextlib.contextmanager
    def stream(stream):
        before = list(now.streams)
        now.streams.append(stream)
        try:
            yield
        finally:
            now.streams = before

    @contextlib.contextmanager
    def graph(graph, pool, stream, capture_error_mode):
        now.streams.append(stream)
        now.pools.append(pool)
        try:
            yield
        except ValueError:
            raise RuntimeError("failed due to a previous error during capture") from None
        now.pools.remove(pool)
        now.streams.pop()

    generator = SimpleNamespace(
        graphsafe_get_state=lambda: now.generator,
        graphsafe_set_state=lambda state: setattr(now, "generator", state),
    )
    for name, stand_in in {
        "CUDAGraph": SimpleNamespace,
        "graph_pool_handle": lambda: (0, 1),
        "default_generators": [generator],
        "stream": stream,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    end_pool = lambda device, pool: now.pools.remove(pool)  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_pool, raising=False)
    monkeypatch.setattr(torch, "Generator", lambda device: "the capture's own")
    return now


@pytest.mark.parametrize("fails", [False, True])
def test_captures_leave_torch_as_it_was(cuda, fails):
    def function():
        assert cuda.streams[-1] == STREAM
        assert cuda.generator == "the capture's own"
        return 1 if not fails else int("no number")

    if fails:
        with pytest.raises(RuntimeError, match="previous error") as raised:
            captured(function, STREAM)
        assert "no number" in str(raised.value.__context__)
    else:
        assert captured(function, STREAM)[1] == 1
    assert vars(cuda) == USUAL
