"""Run the loops of the training decoder and of the encoder LSTM as Triton kernels in CUDA graphs.

    loops = graphs_for(decoder, memory, torch.bfloat16, dropout_masks)

`Graphs` objects run the same steps as the loops in plain.py, on the same buffers. One graph
contains CHUNK steps. A `Graphs` object can be used for all batches of one size class (see `bucket`)
and for any number of steps, because program instances without a clip or symbol return at once. `Graphs`
objects are cached.

If the GPU supports programmatic dependent launch (`uses_dependent_launches`), a kernel starts while
the previous kernel is still running. Before the new kernel reads results of the previous kernel, it
waits until the previous kernel has finished.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fast_decoder import operations
from fast_decoder.cuda_capture import captured, first_problem
from fast_decoder.recurrences import AttentionBuffers, AttentionGradients, LSTMBuffers

CHUNK = 32  # number of decoder steps per CUDA graph
MAX_GRAPHS = 64  # maximum number of cached `Graphs` objects; each needs a few megabytes
# LSTM cells per program instance of a kernel; 1,024 cells use 128 of an H200's 132 multiprocessors
UNITS = 8
PROCESSORS = 132
COLUMNS = 64  # result columns per program instance of a backward product
INNER = 64  # number of values of the inner dimension that a backward product reads at a time
ROWS = 64  # maximum number of clips per program instance of `lstm_step` and `gradient_product`
CLIPS = 16  # clips per program instance of `cell_gradient`
SYMBOLS = 32  # symbols per program instance in the attention backward pass
GROUPS = 4  # number of groups of steps that `attention_sums` sums up concurrently
ENERGIES = 8  # symbols per program instance of `attention_energies`
# Symbols and attention dimensions per program instance of `attention_energies` if the attention
# dimensions are split.
SPLIT_ENERGIES = 32
SPLIT_DIMS = 32
# With at most this number of clips, `attention_energies` loads the past attention weights early.
# With long texts, it also splits the attention dimensions.
FEW_CLIPS = 32
CONTEXT = 64  # maximum number of context columns per program instance of `attention_context`
# Maximum number of values of the encoder memory that a program instance of `attention_context` reads.
CONTEXT_VALUES = 2**14
# Number of warps that split the inner dimension of the float32 product in `lstm_step`; 1: no split.
WARPS = 4
# Buffers that kernels only read. If the kernels cannot read the layout of a buffer, the buffer is
# copied.
READ = "KEEP WEIGHT MASK MEMORY PROCESSED_MEMORY QUERY_WEIGHT LOCATION_WEIGHT V".split()
# Whether dependent launches are used. Measurements and tests set this value to False, because a
# profiler would count the waiting time of dependent launches as work.
DEPENDENT_LAUNCHES = True


class LSTM(NamedTuple):
    """The sizes of an LSTM that affect the launches of its kernels."""

    size: int  # number of cells, S
    inner: int  # inner dimension of the LSTM's matrix product
    query: int  # attention dimension, D; 0 if no attention follows the LSTM
    p_dropout: float

    def split(self) -> tuple[int, int]:
        """Return how `gradient_product` splits its sum over 4 * size gates: the number of parts,
        and the number of gates per part. With the returned numbers, there is about one program instance
        per multiprocessor.
        """
        parts = max(1, PROCESSORS // -(-self.inner // COLUMNS))
        gates = -(-4 * self.size // (parts * INNER)) * INNER
        return -(-4 * self.size // gates), gates


class Setting(NamedTuple):
    """All values that determine how the kernels are launched. The docstring of recurrences.py
    defines the dimensions."""

    device: torch.device
    dtype: torch.dtype  # dtype of parameters and buffers
    operand_dtype: torch.dtype  # dtype of the operands in the matrix products of the LSTMs
    tf32: bool  # whether float32 products may use TF32
    clips: int
    symbols: int
    attention: LSTM  # the attention LSTM; its size is 0 for the encoder
    lstm: LSTM  # the decoder LSTM or the encoder LSTM
    context_size: int  # width of the context, E
    kernel_size: int  # attention_location_kernel_size, K
    location_gradient: bool  # whether gradients flow through the alignments of earlier steps
    differentiable: bool  # whether backward passes are needed
    dependent_launch: bool  # whether a launch may start while the previous launch still runs
    stream: int  # id of the stream; graphs on different streams must not share a table


# ---------------------------------------------------------------------------- the choice of graphs


@functools.cache
def _kernels():
    """Return the module `kernels`, or a message with the reason why this module cannot be
    imported."""
    try:
        from fast_decoder import kernels
    except ImportError as error:
        return f"cannot import Triton ({error})"
    return kernels


def problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the reason why kernels cannot run with this device and dtype, or None."""
    if device.type != "cuda":
        return "no CUDA device"
    if dtype != torch.float32:
        return f"the parameters have dtype {str(dtype).removeprefix('torch.')}, expected float32"
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return (
            f"{torch.cuda.get_device_name(device)} does not have CUDA compute capability 8.0 or "
            "higher"
        )
    return _kernels() if isinstance(_kernels(), str) else None


def uses_dependent_launches(device: torch.device) -> bool:
    """Return whether to use dependent launches, which require compute capability 9.0."""
    if not DEPENDENT_LAUNCHES or device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def bucket(batch_size: int, num_symbols: int) -> tuple[int, int]:
    """Return the maximum numbers of clips and symbols for the graphs of a batch."""
    symbols = 32 if num_symbols <= 32 else -(-num_symbols // 64) * 64
    return -(-batch_size // 16) * 16, symbols


def graphs_for(
    decoder,  # model.Decoder
    memory: Tensor,  # [B, N, E]
    operand_dtype: torch.dtype,
    dropout_masks,  # model.DropoutMasks
) -> "Graphs | str":
    """Return the decoder's graphs for a batch, or a message with the reason why graphs cannot be
    created.

    The first call for each bucket creates the graphs.
    """
    dtype = decoder.attention_rnn.weight_hh.dtype
    reason = problem(memory.device, dtype)
    if reason is not None:
        return reason
    dim, size = decoder.attention_layer.query_layer.linear_layer.weight.shape
    decoder_size = decoder.decoder_rnn.weight_hh.shape[1]
    context_size = memory.shape[2]
    p_attention = 0.0 if dropout_masks.attention_hidden is None else decoder.p_attention_dropout
    p_decoder = 0.0 if dropout_masks.decoder_hidden is None else decoder.p_decoder_dropout
    setting = Setting(
        memory.device,
        dtype,
        operand_dtype,
        torch.backends.cuda.matmul.allow_tf32,
        *bucket(*memory.shape[:2]),
        LSTM(size, size + context_size, dim, p_attention),
        LSTM(decoder_size, decoder_size, 0, p_decoder),
        context_size,
        decoder.attention_layer.location_layer.location_conv.conv.weight.shape[2],
        decoder.attention_layer.location_gradient,
        torch.is_grad_enabled(),
        uses_dependent_launches(memory.device),
        _stream(memory.device),
    )
    return _graphs(setting)


def lstm_graphs_for(
    weight: Tensor,  # [4 * S, S], weight of the hidden state
    batch_size: int,
    operand_dtype: torch.dtype,
) -> "Graphs | str":
    """Return graphs for one LSTM without dropout, or a message with the reason why graphs cannot be
    created."""
    reason = problem(weight.device, weight.dtype)
    if reason is not None:
        return reason
    size = weight.shape[1]
    clips, symbols = bucket(batch_size, 1)
    setting = Setting(
        device=weight.device,
        dtype=weight.dtype,
        operand_dtype=operand_dtype,
        tf32=torch.backends.cuda.matmul.allow_tf32,
        clips=clips,
        symbols=symbols,
        attention=LSTM(size=0, inner=0, query=0, p_dropout=0.0),
        lstm=LSTM(size=size, inner=size, query=0, p_dropout=0.0),
        context_size=0,
        kernel_size=1,
        location_gradient=False,
        differentiable=torch.is_grad_enabled(),
        dependent_launch=uses_dependent_launches(weight.device),
        stream=_stream(weight.device),
    )
    return _graphs(setting)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@functools.lru_cache(MAX_GRAPHS)
def _graphs(setting: Setting) -> "Graphs | str":
    try:
        return Graphs(setting)
    except Exception as error:  # Triton, the driver and the GPU raise many types of exceptions
        reason = first_problem(error)
        if "out of memory" in reason:
            # Raise the error instead of returning a message. A returned message would be cached,
            # although the next batch of this bucket may fit into memory.
            raise torch.OutOfMemoryError(reason) from error
        return reason


class _Loop:
    """The captured launches of CHUNK steps, and the table that the launches read."""

    def __init__(
        self,
        setting: Setting,
        launches: tuple[Callable, ...],
        before: tuple[Callable, ...] = (),
        after: tuple[Callable, ...] = (),
        backwards: bool = False,
    ):
        device = setting.device
        self.backwards = backwards
        self.graph = None
        self.table = torch.zeros(_kernels().TABLE_SIZE, dtype=torch.int64, device=device)
        self.launches = launches
        self.before = before
        advance = _launch(
            setting, setting.lstm, "next_chunk", (1,), BACKWARDS=backwards, num_warps=1
        )
        self.after = (*after, advance)
        if device.type != "cuda":  # with Triton's interpreter, which runs on a CPU
            return
        with torch.cuda.device(device):
            # Wait until the zeros are written to the table. With programmatic dependent launch, the
            # kernels may start earlier.
            torch.cuda.synchronize()
            # Launch the kernels once to compile them. During this launch, the kernels compute
            # nothing, because the table contains no steps yet.
            self._launch(CHUNK)
            torch.cuda.synchronize()
            self.graph, _ = captured(lambda: self._launch(CHUNK), torch.cuda.Stream(device))

    def _launch(self, num_steps: int) -> None:
        for prepare in self.before:
            prepare(self.table)
        for offset in range(num_steps):
            for launch in self.launches:
                launch(self.table, offset)
        for finish in self.after:
            finish(self.table)

    def run(self, num_steps: int, entries: dict) -> None:
        """Run `num_steps` steps. `entries` is {name in the table: number or buffer}."""
        for done in range(0, num_steps, CHUNK):
            count = min(CHUNK, num_steps - done)
            start = num_steps - done - count if self.backwards else done
            # Write the table once. In a CUDA graph, the kernel `next_chunk` updates the table after
            # each chunk. Without a CUDA graph, the next launch may read the table before this kernel
            # has updated it, so write the table for every chunk.
            if done == 0 or (self.table.is_cuda and self.graph is None):
                self._write({"START": start, "STOP": start + count, "STEPS": num_steps, **entries})
            if self.graph is None:
                self._launch(count)
            else:
                self.graph.replay()

    def _write(self, entries: dict) -> None:
        kernels = _kernels()
        values = [0] * kernels.TABLE_SIZE
        for name, entry in entries.items():
            if isinstance(entry, Tensor):
                assert entry.is_contiguous(), name
                entry = entry.data_ptr()
                assert entry % 16 == 0, name
            values[getattr(kernels, name).value] = 0 if entry is None else entry
        table = torch.tensor(values)
        if self.table.is_cuda:
            # Pin the memory, because otherwise the host would wait for earlier steps.
            table = table.pin_memory()
        self.table.copy_(table, non_blocking=True)


def _power_of_two(size: int, minimum: int = 16) -> int:
    return max(minimum, 1 << (size - 1).bit_length())


# ---------------------------------------------------------------------------- the launches


def _constants(s: Setting, lstm: LSTM) -> dict:
    """Return the constants of all kernels, keyed by argument name."""
    tl = _kernels().tl  # Triton's types have the same names as PyTorch's types
    dtype, operand = (
        getattr(tl, str(x).removeprefix("torch.")) for x in (s.dtype, s.operand_dtype)
    )
    return {
        "SIZE": lstm.size,
        "WIDTH": lstm.size + s.context_size,
        "INNER": lstm.inner,
        "QUERY": lstm.query,
        "QUERY_BLOCK": _power_of_two(lstm.query) if lstm.query else 0,
        "DROPOUT": lstm.p_dropout > 0,
        "SPLITS": lstm.split()[0],
        "DIM": s.attention.query,
        "DIM_BLOCK": _power_of_two(s.attention.query),
        "KERNEL": s.kernel_size,
        "KERNEL_BLOCK": _power_of_two(s.kernel_size),
        "TAPS_BLOCK": _power_of_two(2 * s.kernel_size),
        "CONTEXT_BLOCK": _power_of_two(s.context_size),
        "SYMBOLS_BLOCK": SYMBOLS,
        "GROUPS": GROUPS,
        "CHUNK": CHUNK,
        "DTYPE": dtype,
        "OPERAND": operand,
        "PRECISION": _attention_precision(s),
        "QUERY_PRECISION": _attention_precision(s),
        "EARLY": s.dependent_launch,
    }


def _lstm_precision(setting: Setting) -> str:
    # "tf32x3" is the sum of three TF32 products, which is as exact as a float32 product.
    exact = "ieee" if setting.operand_dtype == torch.float64 else "tf32x3"
    return "tf32" if setting.tf32 else exact


def _attention_precision(setting: Setting) -> str:
    """Return the precision of matrix products in attention.

    The precision is TF32 if the operands of the LSTMs have half precision, otherwise float32.
    """
    return "tf32" if _is_half(setting) else _lstm_precision(setting)


def _launch(setting: Setting, lstm: LSTM, name: str, grid: tuple[int, ...], **options) -> Callable:
    """Return a function of (table, offset) that launches the kernel `name`.

    For kernels that process whole chunks, return a function of (table).

    Args:
        options: constants and compiler options in addition to `_constants`.
    """
    kernel = getattr(_kernels(), name)
    constants = _constants(setting, lstm).items()
    options = {key: value for key, value in constants if key in kernel.arg_names} | options
    options |= {"launch_pdl": True} if setting.dependent_launch else {}
    scale = [1 / (1 - lstm.p_dropout)] if "scale" in kernel.arg_names else []
    launch = kernel[grid]
    return lambda *which: launch(*which, *scale, **options)


def _is_half(setting: Setting) -> bool:
    """Return whether the operands of the LSTMs' matrix products have half precision."""
    return setting.operand_dtype != setting.dtype


def _lstm_step(setting: Setting, lstm: LSTM) -> Callable:
    half = _is_half(setting)
    # With half-precision operands, a block of 64 rows is faster than a block of 32 rows, even if
    # most rows are empty.
    rows = ROWS if half and setting.clips > 16 else min(ROWS, _power_of_two(setting.clips))
    # The following numbers of warps were the fastest on an H200. With half-precision operands,
    # warps do not split the inner dimension. Products with 64 rows are not split either, because
    # their tensor-core instructions need several warps.
    warps = WARPS if rows < 64 and not half else 1
    # With larger blocks, a program instance would need too many registers.
    block = 128 if (warps > 1 and rows == 16) or (half and rows == 64) else 64
    return _launch(
        setting,
        lstm,
        "lstm_step",
        (-(-lstm.size // UNITS), -(-setting.clips // rows)),
        ROWS=rows,
        UNITS=UNITS,
        BLOCK=min(block, _power_of_two(lstm.inner, 16 * warps)),
        WARPS=warps,
        PRECISION=_lstm_precision(setting),
        num_warps=4,
        # Use fewer stages for large blocks, because smaller GPUs have only 99 kB of shared memory.
        num_stages=5 if rows < 64 and warps == 1 else 4,
    )


def _energies_grid(setting: Setting) -> tuple[int, int, int]:
    """Return (symbols per program instance, dimensions per program instance, number of instances per
    symbol).

    With few clips and long texts, splitting the dimensions is faster, because each program instance then
    reads only a quarter of the partial sums of the query.
    """
    dim = setting.attention.query
    if _is_half(setting) and setting.clips <= FEW_CLIPS and setting.symbols > 64:
        return SPLIT_ENERGIES, SPLIT_DIMS, -(-dim // SPLIT_DIMS)
    return ENERGIES, _power_of_two(dim), 1


def _attention_energies(setting: Setting) -> Callable:
    parts = -(-setting.attention.size // UNITS)
    symbols, dims, energy_parts = _energies_grid(setting)
    return _launch(
        setting,
        setting.attention,
        "attention_energies",
        (setting.clips, -(-setting.symbols // symbols), energy_parts),
        DIMS=dims,
        PARTS=parts,
        PARTS_BLOCK=min(128, _power_of_two(parts)),
        SYMBOLS_BLOCK=symbols,
        # The maximum numbers of clips were measured on an H100 and an H200. With more clips, a
        # launch may leave no room on the GPU for the next launch.
        AHEAD=setting.clips <= FEW_CLIPS,
        LET_NEXT=setting.clips <= CLIPS or _attention_precision(setting) == "tf32",
        num_warps=4,
        num_stages=1,
    )


def _attention_context(setting: Setting) -> Callable:
    symbols = _power_of_two(setting.symbols)
    columns = max(1, min(CONTEXT, _power_of_two(setting.context_size), CONTEXT_VALUES // symbols))
    grid = setting.clips, -(-setting.context_size // columns)
    *_, energy_parts = _energies_grid(setting)
    sizes = {"COLUMNS": columns, "SYMBOLS_BLOCK": symbols, "ENERGY_PARTS": energy_parts}
    return _launch(setting, setting.attention, "attention_context", grid, **sizes, num_warps=4)


def _gradient_product(setting: Setting, lstm: LSTM) -> Callable:
    rows = min(ROWS, _power_of_two(setting.clips))
    parts, gates = lstm.split()
    return _launch(
        setting,
        lstm,
        "gradient_product",
        (-(-lstm.inner // COLUMNS), parts, -(-setting.clips // rows)),
        ROWS=rows,
        COLUMNS=COLUMNS,
        SPLIT=gates,
        BLOCK=INNER,
        PRECISION=_lstm_precision(setting),
        num_warps=4,
        num_stages=4,
    )


def _attention_gradient(setting: Setting) -> Callable:
    grid = setting.clips, -(-setting.symbols // SYMBOLS)
    max_symbols = _power_of_two(setting.symbols)
    return _launch(
        setting, setting.attention, "attention_gradient", grid, MAX_SYMBOLS=max_symbols, num_warps=8
    )


def _cell_gradient(setting: Setting, lstm: LSTM) -> Callable:
    # Numbers of LSTM cells per program instance that were the fastest on an H100.
    units = 16 if lstm.query else 32
    warps = 4
    # Tensor cores need an inner dimension of at least 16.
    query_warps = min(warps, _power_of_two(lstm.query) // 16) if lstm.query else 0
    through_windows = CLIPS if lstm.query and setting.location_gradient else 0
    grid = -(-lstm.size // units) + through_windows, -(-setting.clips // CLIPS)
    return _launch(
        setting,
        lstm,
        "cell_gradient",
        grid,
        WARPS=query_warps,
        SYMBOLS_A_PART=SYMBOLS,
        MAX_SYMBOLS=setting.symbols,
        SYMBOLS_BLOCK=min(setting.symbols, 64),
        ROWS=CLIPS,
        UNITS=units,
        LET_NEXT=setting.clips <= CLIPS,
        num_warps=warps,
    )


def _aligned(x: Tensor) -> Tensor:
    """Return `x` itself if the kernels can read this tensor, otherwise a copy that the kernels can
    read."""
    if x.is_contiguous() and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


class Graphs:
    """Run the forward and backward loops of all batches with the same `Setting`.

    The class has the same methods as `plain.PlainLoops`.
    """

    def __init__(self, setting: Setting):
        s = self.setting = setting
        self.operand_dtype = s.operand_dtype
        self._zeros = functools.partial(torch.zeros, dtype=s.dtype, device=s.device)
        self._empty = functools.partial(operations.empty, dtype=s.dtype, device=s.device)
        self._lstm = _Loop(s, (_lstm_step(s, s.lstm),))
        if s.differentiable:
            product = _gradient_product(s, s.lstm)
            cells = _cell_gradient(s, s.lstm)
            self._lstm_backward = _Loop(s, (product, cells), backwards=True)
        if s.attention.size:
            self._record_attention()

    def _record_attention(self) -> None:
        s = self.setting
        forward = _lstm_step(s, s.attention), _attention_energies(s), _attention_context(s)
        self._attention = _Loop(s, forward)
        if not s.differentiable:
            return
        symbols = -(-s.symbols // SYMBOLS)
        choices = {"num_warps": 8, "num_stages": 1}
        slopes = (CHUNK, symbols, s.clips)
        sums = (s.clips, symbols, GROUPS)
        product = _gradient_product(s, s.attention)
        cells = _cell_gradient(s, s.attention)
        self._attention_backward = _Loop(
            s,
            (product, _attention_gradient(s), cells),
            before=(_launch(s, s.attention, "attention_slopes", slopes, **choices),),
            after=(_launch(s, s.attention, "attention_sums", sums, **choices),),
            backwards=True,
        )

    def _entries(self, buffers: LSTMBuffers) -> dict:
        """Return the buffers of all loops, keyed by their names in the table."""
        entries = {name.upper(): x for name, x in vars(buffers).items()}
        entries |= {"BATCH": buffers.cells.shape[1], "ROWS_OUT": entries.pop("ROWS")}
        if isinstance(buffers, AttentionBuffers):
            entries["SYMBOLS"] = buffers.memory.shape[1]
            entries["LOCATION_WEIGHT"] = buffers.location_weight.T
        return entries | {
            name: _aligned(entries[name]) for name in READ if entries.get(name) is not None
        }

    def _gradient_entries(self, buffers: LSTMBuffers, grad_rows: Tensor, lstm: LSTM) -> dict:
        """Return the additional buffers of a backward loop, keyed by their names in the table."""
        _, batch_size, size = buffers.cells.shape
        dgates = buffers.gates
        if self.operand_dtype != dgates.dtype:
            dgates = self._empty(*dgates.shape, dtype=self.operand_dtype)
        return {
            "DGATES": dgates,
            "PARTIALS": self._empty(lstm.split()[0], batch_size, lstm.inner),
            "GRAD_ROWS": _aligned(grad_rows),
            "DCELL": self._zeros(batch_size, size),
        }

    def _forward(self, loop: _Loop, operands: Tensor, entries: dict) -> None:
        if operands.dtype != self.operand_dtype:
            operands = self._empty(*operands.shape, dtype=self.operand_dtype)
        loop.run(len(operands), entries | {"OPERANDS": operands})

    def attention_forward(self, buffers: AttentionBuffers) -> None:
        _, batch_size, size = buffers.cells.shape
        entries = self._entries(buffers) | {
            "QUERY_WEIGHT": buffers.query_weight.T.contiguous(),
            "QUERY_PARTS": self._empty(-(-size // UNITS), batch_size, len(buffers.v)),
            "ENERGIES": self._empty(_energies_grid(self.setting)[2], *buffers.mask.shape),
        }
        self._forward(self._attention, buffers.rows, entries)

    def lstm_forward(self, buffers: LSTMBuffers) -> None:
        self._forward(self._lstm, buffers.rows, self._entries(buffers))

    def attention_backward(
        self, buffers: AttentionBuffers, grad_states: Tensor, grad_alignments: Tensor | None
    ) -> AttentionGradients:
        num_steps, batch_size, _ = buffers.cells.shape
        num_symbols, context_size = buffers.memory.shape[1:]
        dim, taps = buffers.location_weight.shape
        chunk = min(CHUNK, num_steps)
        symbols = -(-num_symbols // SYMBOLS)
        parts = GROUPS * batch_size * symbols
        entries = self._entries(buffers) | {
            **self._gradient_entries(buffers, grad_states, self.setting.attention),
            "QUERY_PARTS": self._empty(symbols, batch_size, dim),
            "QUERIES": buffers.hidden @ buffers.query_weight.T,
            "GRAD_ALIGNMENTS": None if grad_alignments is None else _aligned(grad_alignments),
            "TANH": self._empty(chunk, batch_size, num_symbols, dim),
            "FILTERS": self._empty(chunk, batch_size, taps, num_symbols),
            "DENERGIES": self._empty(chunk, batch_size, num_symbols),
            "DCONTEXTS": self._empty(num_steps, batch_size, context_size),
            "DQUERIES": self._empty(num_steps, batch_size, dim),
            "CARRIED": self._zeros(batch_size, num_symbols),
            "DCUMULATIVE": self._zeros(batch_size, num_symbols),
            "DKEYS": self._zeros(GROUPS, batch_size, num_symbols, dim),
            "DV": self._zeros(parts, dim),
            "DLOCATION": self._zeros(parts, taps, dim),
        }
        self._attention_backward.run(num_steps, entries)
        return AttentionGradients(
            gates=entries["DGATES"],
            contexts=entries["DCONTEXTS"],
            queries=entries["DQUERIES"],
            processed_memory=entries["DKEYS"].sum(dim=0),
            location_weight=entries["DLOCATION"].sum(dim=0).T,
            v=entries["DV"].sum(dim=0),
        )

    def lstm_backward(self, buffers: LSTMBuffers, grad_outputs: Tensor) -> Tensor:
        entries = self._entries(buffers)
        entries |= self._gradient_entries(buffers, grad_outputs, self.setting.lstm)
        self._lstm_backward.run(len(buffers.cells), entries)
        return entries["DGATES"]
