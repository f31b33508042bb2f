"""Runs ONNX graphs, also of files from elsewhere: with ONNX Runtime, without reading others, and in
bounded memory and time.

graph = Graph(path, content, threads)
[sound] = graph.run({"mel": mel}, seconds_of_sound)
"""

import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from tacotron2_voice.bounds import Bounds
from tacotron2_voice.utils.errors import UserError

MAX_GRAPH_BYTES = 2**30  # the full-size model's decoder step has 72 MB


class Graph:
    """An ONNX graph that reads no files, to be run; UserError if there is none."""

    def __init__(self, path: str | Path, content: bytes, threads: int):
        import onnxruntime

        # The key of a tensor that lies in another file, whatever way its length is written.
        if re.search(rb"(?:\x08|\x88\x80*\x00)location", content):
            raise UserError("a graph that reads other files; put its weights into the graph")
        self.bounds = Bounds(path, threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised
        # Or ONNX Runtime would take its own format too, which `operators` cannot read.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        providers = ["CPUExecutionProvider"]
        # Constants are computed at each run, where they can be stopped.
        left_out = ["ConstantFolding"]
        try:
            load = onnxruntime.InferenceSession
            make = lambda: load(content, options, providers, disabled_optimizers=left_out)  # noqa: E731
            self.session = self.bounds.call(make, 0, None)
        except UserError:
            raise
        except Exception as error:  # of many kinds
            raise UserError(f"no ONNX graph that runs here ({self._brief(error)})") from None
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()
        self.new_options = onnxruntime.RunOptions

    def run(self, inputs: Mapping[str, np.ndarray], seconds: float) -> list[np.ndarray]:
        """The outputs, of which so many seconds of sound are made; UserError if it cannot be run,
        or takes too much memory or time."""
        options = self.new_options()
        run = lambda: self.session.run(None, inputs, options)  # noqa: E731
        stop = lambda: setattr(options, "terminate", True)  # noqa: E731
        try:
            return self.bounds.call(run, seconds, stop)
        except UserError:
            raise
        except Exception as error:  # of many kinds
            raise UserError(f"the graph cannot be run ({self._brief(error)})") from None

    def _brief(self, error: Exception) -> str:
        if isinstance(error, MemoryError) or "alloc" in str(error).lower():
            gigabytes = self.bounds.max_memory / 1e9
            return f"it asks for more than {gigabytes:.1f} GB of memory; take another"
        return " ".join(str(error).rpartition("Status Message:")[2].split())[:120]


def refuse_operators(content: bytes, known: Set[str], which: str, fix: str) -> None:
    """UserError if an ONNX graph has other operators than the `known` ones, such as loops, or is no
    graph. `which`: what the others are, in a phrase."""
    if unknown := operators(content) - known:
        names = ", ".join(sorted(unknown))
        raise UserError(f"operators that {which}: {names:.200}; {fix}")


def operators(content: bytes) -> set[str]:
    """The names of an ONNX graph's operators, and "function" or "subgraph" if it has these, and
    "DOMAIN.NAME" of those that are not ONNX's own; UserError if it is none. onnx would know them
    too, but voices do without it."""
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
        names = set[str]()
        for node in nodes:
            domain = [x.decode() for x in fields([node], 7)][-1:]
            own = "" if domain in ([], [""], ["ai.onnx"]) else f"{domain[0]}."
            names |= {own + name.decode() for name in fields([node], 4)}
        return {*inner, *functions, *names}
    except (DecodeError, UnicodeDecodeError):
        raise UserError("no ONNX graph; copy it again") from None
