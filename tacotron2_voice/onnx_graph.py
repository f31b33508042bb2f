"""Run ONNX graphs with ONNX Runtime, and check the operators and files that a graph uses.

check_operators(content, {"MatMul", "Relu"}, "a voice")
graph = OnnxGraph(content, threads=1)
[audio] = graph.run({"mel": mel})
"""

import os
import re
from collections.abc import Mapping, Sequence, Set

import numpy as np

from tacotron2_voice.utils.errors import UserError

MAX_GRAPH_BYTES = 2**30  # maximum size of a graph file; the decoder of a full-size model has 72 MB


class OnnxGraph:
    """Load and run an ONNX graph that does not use other files.

    Raises:
        UserError: if the content is not an ONNX graph, or if the graph uses other files.
    """

    def __init__(self, content: bytes, threads: int):
        # Without this variable, ONNX Runtime sends usage data to Microsoft.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        # If the data of a tensor is in another file, the tensor's protobuf message contains the key
        # "location".
        if re.search(rb"(?:\x08|\x88\x80*\x00)location", content):
            raise UserError("the graph stores weights in other files (expected a single file)")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # do not log errors, because they are raised as exceptions
        # Only accept the ONNX format, because `operators` cannot read ONNX Runtime's own format.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            # Disable constant folding, which would store float32 copies of int8 weights in memory.
            self.session = onnxruntime.InferenceSession(
                content,
                options,
                ["CPUExecutionProvider"],
                disabled_optimizers=["ConstantFolding"],
            )
        except Exception as error:  # ONNX Runtime raises many types of errors
            raise UserError(f"not an ONNX graph that can run here ({_reason(error)})") from None
        self.inputs = self.session.get_inputs()
        self.outputs = self.session.get_outputs()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run the graph and return its outputs. Raise UserError if the graph cannot run."""
        try:
            return self.session.run(None, inputs)
        except Exception as error:  # ONNX Runtime raises many types of errors
            raise UserError(f"the graph cannot run ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """Return the beginning of an error message from ONNX Runtime, without the source location."""
    return " ".join(str(error).rpartition("Status Message:")[2].split())[:120]


def check_operators(content: bytes, known: Set[str], kind: str) -> None:
    """Check that an ONNX graph contains only `known` operators.

    Args:
        kind: the expected kind of graph, for the message, such as "a voice".

    Raises:
        UserError: if the content is not an ONNX graph, or if the graph contains other operators.
    """
    unknown = operators(content) - known
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UserError(f"contains operators that {kind} cannot have: {names:.200}")


def operators(content: bytes) -> set[str]:
    """Return the names of the operators in an ONNX graph.

    The set also contains "function" or "subgraph" if the graph has functions or subgraphs. The
    names of operators outside ONNX's own domain have the form "DOMAIN.NAME". This function parses
    the file itself, because voices must work without the package onnx.

    Raises:
        UserError: if the content is not an ONNX graph.
    """
    # Parse the file as an empty protobuf message. All fields of the file are then unknown fields,
    # which protobuf can list.
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def fields(messages: Sequence[bytes], number: int) -> list[bytes]:
        """Return the contents of all fields with this field number in onnx.proto."""
        all_fields = [x for y in messages for x in UnknownFieldSet(Empty.FromString(y))]
        return [x.data for x in all_fields if (x.field_number, x.wire_type) == (number, 2)]

    names = set[str]()
    try:
        nodes = fields(fields([content], 7), 1)
        attributes = fields(nodes, 5)
        if fields(attributes, 6) or fields(attributes, 11):
            names.add("subgraph")
        if fields([content], 25):
            names.add("function")
        for node in nodes:
            domains = [x.decode() for x in fields([node], 7)]
            is_own = not domains or domains[-1] in ("", "ai.onnx")
            prefix = "" if is_own else f"{domains[-1]}."
            names |= {prefix + name.decode() for name in fields([node], 4)}
    except (DecodeError, UnicodeDecodeError):
        raise UserError("not an ONNX graph") from None
    return names
