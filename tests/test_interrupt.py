"""Test that Ctrl-C ends programs during imports and during ONNX Runtime computation."""

import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from helpers import ROOT
from onnx import helper, numpy_helper


@pytest.mark.parametrize("program", ["train.py", "synthesize.py", "scripts/prepare.py"])
def test_ctrl_c_ends_a_program_without_a_traceback_during_imports(program):
    command = [sys.executable, "-X", "importtime", program]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "argparse" not in process.stderr.readline():  # other modules are imported after it
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in error


def write_slow_vocoder(path) -> None:
    """Write a vocoder whose calls take about a second each, because it multiplies large
    matrices."""
    size = 1500
    matrix = np.zeros((size, size), np.float32)
    weights = {
        "matrix": matrix,
        "zero": np.float32(0),
        "hop": np.array([1, 1, 1, 256]),
        "last": np.array([3]),
        "all": np.array([1, 1, -1]),
        "axes": np.array([0, 1]),
    }
    nodes = [helper.make_node("ReduceMax", ["mel"], ["loudest"], axes=[1])]
    product = "matrix"
    for number in range(30):
        nodes.append(helper.make_node("MatMul", [product, "matrix"], [f"product{number}"]))
        product = f"product{number}"
    nodes += [
        helper.make_node("ReduceMax", [product], ["largest"], keepdims=0),
        helper.make_node("Add", ["loudest", "largest"], ["sum"]),
        helper.make_node("Mul", ["sum", "zero"], ["silent"]),
        helper.make_node("Unsqueeze", ["silent", "last"], ["columns"]),
        helper.make_node("Expand", ["columns", "hop"], ["repeated"]),
        helper.make_node("Reshape", ["repeated", "all"], ["audio"]),
    ]
    ends = [helper.make_tensor_value_info(x, 1, [1, None, None]) for x in ("mel", "audio")]
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "slow", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.thorough
def test_ctrl_c_ends_a_program_during_onnx_computation(voices, tmp_path):
    write_slow_vocoder(tmp_path / "slow.onnx")
    text = "A dog came. " * 200
    options = ["--vocoder", tmp_path / "slow.onnx", "--text", text, "-o", tmp_path / "a.wav"]
    command = [sys.executable, "-m", "tacotron2_voice", "speak", voices.fp32[0], *options]
    process = subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        part = tmp_path / "a.part.wav"
        while not (part.exists() and part.stat().st_size > 44):  # wait until the vocoder runs
            assert process.poll() is None, process.stderr
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted" in error
    assert "Traceback" not in error
