"""tacotron2_voice/bounds.py: graphs end in bounded memory and time, and at Ctrl-C."""

import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import onnx
import pytest
from corpora import refusal
from helpers import ROOT
from onnx import helper, numpy_helper

from hparams import create_hparams
from tacotron2_voice import bounds
from tacotron2_voice.bounds import Bounds
from tacotron2_voice.utils.arguments import processors
from tacotron2_voice.vocoder import load_vocoder

GIGABYTE = 2**30
CHAIN = [
    ("MatMul", ["x", "x"], "x0"),
    *(("MatMul", [f"x{i}", "x"], f"x{i + 1}") for i in range(4000)),
]


def write_vocoder(path, nodes, size) -> None:
    """A graph that makes of a mel `k`, a number, and `x` [*size], and `x` over again by nodes."""
    begin = [("ReduceMax", ["mel"], "k"), ("Expand", ["k", "size"], "x")]
    made = [helper.make_node(name, ins, [out]) for name, ins, out in begin + nodes]
    made[0].attribute.append(helper.make_attribute("keepdims", 0))
    made.append(helper.make_node("ReduceMax", [nodes[-1][2]], ["sound"]))
    ends = [helper.make_tensor_value_info(x, 1, [1, None, None]) for x in ("mel", "sound")]
    weights = [numpy_helper.from_array(np.array(size), "size")]
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(made, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.parametrize("threads", sorted({1, min(2, processors())}))
@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([("Exp", ["x"], "y")], [2**40]),
        (
            [
                *(("Mul", [f"x{i}" if i else "x", "k"], f"x{i + 1}") for i in range(40)),
                ("Concat", [f"x{i + 1}" for i in range(40)], "y"),
            ],
            [2**25],
        ),
        ([("Tile", ["x", "size"], "y")], [2**16]),
    ],
)
def test_memory_without_end_is_refused(nodes, size, threads, tmp_path, monkeypatch):
    """At once, and over forty tensors of 128 MB; the limit of the process is as it was."""
    monkeypatch.setattr(bounds, "MAX_MEMORY_BYTES", GIGABYTE)
    write_vocoder(tmp_path / "v.onnx", nodes, size)
    if nodes[-1][0] == "Concat":
        model = onnx.load(tmp_path / "v.onnx")
        model.graph.node[-2].attribute.append(helper.make_attribute("axis", 0))
        onnx.save(model, tmp_path / "v.onnx")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    message = refusal(load_vocoder, tmp_path / "v.onnx", create_hparams(), threads)
    assert message.startswith(f"{tmp_path / 'v.onnx'}: the graph cannot be run (")
    if nodes[-1][0] != "Tile":  # whose own words for it differ
        assert "it asks for more than 1.1 GB of memory; take another" in message
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.thorough
def test_time_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "BASE_SECONDS", 0.3)
    write_vocoder(tmp_path / "v.onnx", CHAIN, [800, 800])
    began = time.process_time()
    message = refusal(load_vocoder, tmp_path / "v.onnx", create_hparams())
    assert message.startswith(f"{tmp_path / 'v.onnx'}: takes over ")
    assert time.process_time() - began < 15  # 0.3 s, and 20 times that of 16 frames


def test_slow_calls_use_up_what_fast_ones_leave(monkeypatch):
    monkeypatch.setattr(bounds, "BASE_SECONDS", 0.2)
    one = Bounds("x", 1)

    def compute(seconds):
        began = time.process_time()
        while time.process_time() < began + seconds:
            pass

    for _ in range(5):  # as much as their sound allows
        one.call(lambda: compute(0.1), 0.1, None)
    one.call(lambda: compute(0.15), 0, lambda: None)
    assert refusal(one.call, lambda: compute(0.25), 0, lambda: None).startswith("takes over ")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["many nodes", "one node"])
def test_ctrl_c_ends_a_graph(kind, tmp_path):
    """Between two nodes by the graph's own means, inside a node with the process."""
    nodes, size = (CHAIN, [1000]) if kind == "many nodes" else (CHAIN[:1], [12000])
    write_vocoder(tmp_path / "v.onnx", nodes, size * 2)
    script = "import sys, tacotron2_voice.utils.environment; from tacotron2_voice.vocoder import load_vocoder\n"
    script += "from hparams import create_hparams; print(flush=True)\n"
    script += "load_vocoder(sys.argv[1], create_hparams())"
    command = [sys.executable, "-c", script, str(tmp_path / "v.onnx")]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **streams) as program:
        program.stdout.readline()
        time.sleep(3)
        began = time.monotonic()
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 130
        assert time.monotonic() - began < 5  # 1 s, on a machine that does nothing else
        assert program.stderr.read().endswith(b": interrupted\n")


def test_calls_of_several_threads_restore_the_limit():
    limits, both = resource.getrlimit(resource.RLIMIT_AS), threading.Barrier(2)

    def run():
        for _ in range(100):
            Bounds("x", 1).call(both.wait, 0, None)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
