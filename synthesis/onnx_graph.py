"""Runs ONNX graphs, also of files from elsewhere: with ONNX Runtime, and without reading others."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from common.errors import UserError

MAX_GRAPH_BYTES = 2**30  # the full-size model's decoder step has 72 MB


class Graph:
    """An ONNX graph that reads no files, to be run; UserError if there is none."""

    def __init__(self, content: bytes, threads: int):
        import onnxruntime

        # The key of a tensor that lies in another file, whatever way its length is written.
        if re.search(rb"(?:\x08|\x88\x80*\x00)location", content):
            raise UserError("a graph that reads other files; put its weights into the graph")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised
        # Or ONNX Runtime would take its own format too, which `operators` cannot read.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        providers = ["CPUExecutionProvider"]
        try:
            self.session = onnxruntime.InferenceSession(content, options, providers)
        except Exception as error:  # of many kinds
            raise UserError(f"no ONNX graph that runs here ({_brief(error)})") from None
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return self.session.run(None, inputs)
        except Exception as error:  # of many kinds, also for too little memory
            raise UserError(f"the graph cannot be run ({_brief(error)})") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def operators(content: bytes) -> set[str]:
    """The names of an ONNX graph's operators, and "function" or "subgraph" if it has these;
    UserError if it is none. onnx would know them too, but voices do without it."""
    from google.protobuf.empty_pb2 import Empty  # a message of which all fields are unknown
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def fields(messages: Sequence[bytes], number: int) -> list[bytes]:
        """The messages and texts of this number in onnx.proto."""
        all_fields = [x for y in messages for x in UnknownFieldSet(Empty.FromString(y))]
        return [x.data for x in all_fields if (x.field_number, x.wire_type) == (number, 2)]

    try:
        nodes = fields(fields([content], 7), 1)
        attributes = fields(nodes, 5)
        inner = ["subgraph" for _ in fields(attributes, 6) + fields(attributes, 11)]
        functions = ["function" for _ in fields([content], 25)]
        return {*inner, *functions, *(name.decode() for name in fields(nodes, 4))}
    except (DecodeError, UnicodeDecodeError):
        raise UserError("no ONNX graph; copy the voice again") from None
