"""The training decoder's two loops on a GPU: decoder_kernels.py's launches, in CUDA graphs.

`attention_forward`, `decoder_forward` and the two `...Backward` do the steps of the loops in
fast_decoder.py, on the same buffers. CHUNK steps make one graph, and graphs are kept: which one a
batch needs depends on its `bucket` alone, not on its number of steps, for the kernels read sizes
and addresses from a table (decoder_kernels.py). Nothing is padded for them; programs that have no
clip or no symbols to work on return at once.
"""

import functools
from collections.abc import Callable

import torch

CHUNK = 32  # steps a graph
MOST_GRAPHS = 128  # kept; one is about a megabyte
UNITS = 8  # LSTM cells a program: 1,024 of them fill 128 of an H200's 132 processors
COLUMNS, SPLIT = 64, 512  # of a backward product's result and inner dimension, a program
ROWS = 16  # clips a program of `cell_gradient`
SYMBOLS = 32  # a program of `attention_gradient`
CONTEXT = 128  # context columns a program of `attention_step`

_empty = torch.empty  # every buffer whose values are still to come; tests fill them with NaN


# ---------------------------------------------------------------------------- whether, and which


@functools.cache
def _kernels():
    """decoder_kernels, or the reason why it cannot be imported."""
    try:
        import decoder_kernels
    except ImportError as error:
        return f"Triton cannot be imported ({error})"
    return decoder_kernels


def problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels do not run here on parameters of this type, or None if they do."""
    if device.type != "cuda":
        return "no CUDA device"
    if dtype != torch.float32:
        return f"parameters are {str(dtype).removeprefix('torch.')}, not float32"
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} has no CUDA compute capability 8.0"
    return _kernels() if isinstance(_kernels(), str) else None


def bucket(batch_size: int, num_symbols: int) -> tuple[int, int]:
    """The clips and symbols that the graphs for such a batch have programs for."""
    symbols = 32 if num_symbols <= 32 else -(-num_symbols // 64) * 64
    return -(-batch_size // 16) * 16, symbols


def _power_of_two(size: int, least: int = 16) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _product_precision(dtype: torch.dtype) -> str:
    """What `tl.dot` makes of float32: TF32 where torch may use it, else three TF32 products,
    which together are as exact."""
    if dtype != torch.float32:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


# ---------------------------------------------------------------------------- a graph


class _Loop:
    """The launches of CHUNK steps, captured, and the table that they read."""

    def __init__(self, device: torch.device, launch: Callable[[torch.Tensor, int], None]):
        self.table = torch.zeros(_kernels().TABLE_SIZE, dtype=torch.int64, device=device)
        self.launch, self.graph = launch, None
        if device.type != "cuda":  # the interpreter
            return
        with torch.cuda.device(device):
            for offset in range(CHUNK):  # compiles; there are no steps to make as yet
                launch(self.table, offset)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            # A loader's thread may pin memory meanwhile: that is no business of this capture.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                for offset in range(CHUNK):
                    launch(self.table, offset)

    def run(self, start: int, stop: int, entries: dict) -> None:
        """Makes the steps, at most CHUNK; `entries`: numbers and buffers by name of their place."""
        kernels = _kernels()
        values = [0] * kernels.TABLE_SIZE
        for name, entry in {"START": start, "STOP": stop, **entries}.items():
            if isinstance(entry, torch.Tensor):
                assert entry.is_contiguous(), name
                entry = entry.data_ptr()
                assert entry % 16 == 0, name
            values[getattr(kernels, name).value] = entry
        values = torch.tensor(values)
        if self.graph is None:
            self.table.copy_(values)
            for offset in range(stop - start):
                self.launch(self.table, offset)
        else:
            self.table.copy_(values.pin_memory(), non_blocking=True)
            self.graph.replay()


def _aligned(x: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor itself if the kernels can read it, else a copy."""
    if x is None or (x.is_contiguous() and x.data_ptr() % 16 == 0):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _settings(device, dtype, operand_dtype, bucket) -> tuple:
    """What every loop's launches depend on, beside its own sizes."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return device, dtype, operand_dtype, _product_precision(operand_dtype), bucket, stream


def _types(settings: tuple) -> dict:
    import triton.language as tl

    device, dtype, operand_dtype, precision, *_ = settings
    names = {torch.float32: tl.float32, torch.float64: tl.float64}
    names |= {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return {
        "DTYPE": names[dtype],
        "OPERAND": names[operand_dtype],
        "PRECISION": precision,
        "INTERPRETED": device.type != "cuda",
    }


def _attention_precision(types: dict) -> dict:
    """Attention's own products: never in less than TF32."""
    halves = types["OPERAND"] != types["DTYPE"]
    return {**types, "PRECISION": "tf32" if halves else types["PRECISION"]}


# ---------------------------------------------------------------------------- the launches


def _lstm_launch(settings: tuple, size: int, width: int, inner: int, query: int, p: float):
    rows = min(64, _power_of_two(settings[4][0]))
    grid = (-(-size // UNITS), -(-settings[4][0] // rows))
    types = _types(settings)
    options = {
        "SIZE": size,
        "WIDTH": width,
        "INNER": inner,
        "QUERY": query,
        "QUERY_BLOCK": _power_of_two(query) if query else 0,
        "ROWS": rows,
        "UNITS": UNITS,
        "BLOCK": 64 if types["OPERAND"] == types["DTYPE"] else 128,
        "DROPOUT": p > 0,
        "num_warps": 4,
        "num_stages": 4,
        **types,
    }
    step = _kernels().lstm_step[grid]
    return lambda table, offset: step(table, offset, 1 / (1 - p), **options)


@functools.lru_cache(MOST_GRAPHS)
def _attention_forward(
    settings: tuple, size: int, width: int, dim: int, kernel: int, p: float
) -> _Loop:
    types, (rows, symbols) = _types(settings), settings[4]
    lstm_step = _lstm_launch(settings, size, width, width, dim, p)
    options = {
        "PARTS": -(-size // UNITS),
        "PARTS_BLOCK": 16,
        "SIZE": size,
        "WIDTH": width,
        "DIM": dim,
        "DIM_BLOCK": _power_of_two(dim),
        "KERNEL": kernel,
        "TAPS_BLOCK": _power_of_two(2 * kernel),
        "CONTEXT_BLOCK": min(CONTEXT, _power_of_two(width - size)),
        "SYMBOLS_BLOCK": min(symbols, 128 if symbols > 64 else 64),
        "num_warps": 8,
        "num_stages": 1,
        **_attention_precision(types),
    }
    attention_step = _kernels().attention_step[rows, -(-(width - size) // options["CONTEXT_BLOCK"])]

    def launch(table: torch.Tensor, offset: int) -> None:
        lstm_step(table, offset)
        attention_step(table, offset, **options)

    return _Loop(settings[0], launch)


@functools.lru_cache(MOST_GRAPHS)
def _decoder_forward(settings: tuple, size: int, width: int, p: float) -> _Loop:
    return _Loop(settings[0], _lstm_launch(settings, size, width, size, 0, p))


def _gradient_launches(
    settings: tuple, size: int, width: int, inner: int, query: int, kernel: int, p: float
) -> tuple[Callable, Callable]:
    """`gradient_product` and `cell_gradient`."""
    types, (rows, symbols) = _types(settings), settings[4]
    tile = min(64, _power_of_two(rows))
    splits = -(-4 * size // SPLIT)
    product = _kernels().gradient_product[-(-inner // COLUMNS), splits, -(-rows // tile)]
    product_options = {
        "SIZE": size,
        "INNER": inner,
        "ROWS": tile,
        "COLUMNS": COLUMNS,
        "SPLIT": SPLIT,
        "BLOCK": 64,
        "num_warps": 4,
        "num_stages": 4,
        **types,
    }
    units = 32
    cell_types = _attention_precision(types)
    del cell_types["OPERAND"]
    cell = _kernels().cell_gradient[-(-size // units) + (ROWS if query else 0), rows // ROWS]
    cell_options = {
        "SIZE": size,
        "WIDTH": width,
        "INNER": inner,
        "SPLITS": splits,
        "QUERY": query,
        "QUERY_BLOCK": _power_of_two(query) if query else 0,
        "SYMBOLS_PART": SYMBOLS,
        "KERNEL": kernel,
        "KERNEL_BLOCK": _power_of_two(kernel),
        "SYMBOLS_BLOCK": min(symbols, 128),
        "ROWS": ROWS,
        "UNITS": units,
        "DROPOUT": p > 0,
        "num_warps": 4,
        **cell_types,
    }
    return (
        lambda table, offset: product(table, offset, **product_options),
        lambda table, offset: cell(table, offset, 1 / (1 - p), **cell_options),
    )


@functools.lru_cache(MOST_GRAPHS)
def _attention_backward(
    settings: tuple, size: int, width: int, dim: int, kernel: int, p: float, alignments_too: bool
) -> _Loop:
    types, (rows, symbols) = _types(settings), settings[4]
    product, cell = _gradient_launches(settings, size, width, width, dim, kernel, p)
    splits = -(-4 * size // SPLIT)
    options = {
        "SIZE": size,
        "WIDTH": width,
        "SPLITS": splits,
        "SPLITS_BLOCK": _power_of_two(splits, 1),
        "DIM": dim,
        "DIM_BLOCK": _power_of_two(dim),
        "CONTEXT_BLOCK": min(CONTEXT, _power_of_two(width - size)),
        "SYMBOLS_BLOCK": SYMBOLS,
        "ALIGNMENTS_TOO": alignments_too,
        "DTYPE": types["DTYPE"],
        "num_warps": 4,
    }
    attention = _kernels().attention_gradient[rows, -(-symbols // SYMBOLS)]

    def launch(table: torch.Tensor, offset: int) -> None:
        product(table, offset)
        attention(table, offset, **options)
        cell(table, offset)

    return _Loop(settings[0], launch)


@functools.lru_cache(MOST_GRAPHS)
def _decoder_backward(settings: tuple, size: int, width: int, p: float) -> _Loop:
    product, cell = _gradient_launches(settings, size, width, size, 0, 0, p)

    def launch(table: torch.Tensor, offset: int) -> None:
        product(table, offset)
        cell(table, offset)

    return _Loop(settings[0], launch)


# ---------------------------------------------------------------------------- the loops


def _options(x: torch.Tensor) -> dict:
    return {"dtype": x.dtype, "device": x.device}


def _lstm_entries(keep, rows, weight, operand_dtype, gates, cells) -> dict:
    """What both LSTMs' loops share, forward and backward."""
    return {
        "STEPS": cells.shape[0],
        "BATCH": cells.shape[1],
        "WEIGHT": _aligned(weight.to(operand_dtype)),
        "GATES": gates,
        "CELLS": cells,
        "KEEP": 0 if keep is None else _aligned(keep),
        "ROWS_OUT": rows,
    }


def _operands(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where the next product finds the rows in its own precision."""
    return rows if rows.dtype == dtype else _empty(*rows.shape, dtype=dtype, device=rows.device)


def _run(loop: _Loop, num_steps: int, entries: dict) -> None:
    for start in range(0, num_steps, CHUNK):
        loop.run(start, min(start + CHUNK, num_steps), entries)


def attention_forward(
    operand_dtype: torch.dtype,
    keep: torch.Tensor | None,  # [T, B, A] bool
    p_dropout: float,
    mask: torch.Tensor,  # [B, N] bool
    memory: torch.Tensor,  # [B, N, E]
    processed_memory: torch.Tensor,  # [B, N, D]
    state_weight: torch.Tensor,  # [4 * A, A + E]
    query_weight: torch.Tensor,  # [D, A]
    location_weight: torch.Tensor,  # [D, 2 * K]
    v: torch.Tensor,  # [D]
    gates: torch.Tensor,  # [T, B, 4 * A], the inputs' share; activated on return
    cells: torch.Tensor,  # [T, B, A], written
    states: torch.Tensor,  # [T, B, A + E], written
    alignments: torch.Tensor,  # [T, B, N], written
    past: torch.Tensor,  # [T, B, 2, N + K - 1], zero; its middle written
    differentiable: bool,
) -> None:
    """All steps of the attention recurrence."""
    num_steps, batch_size, size = cells.shape
    num_symbols, (dim, taps) = memory.shape[1], location_weight.shape
    settings = _settings(
        memory.device, memory.dtype, operand_dtype, bucket(batch_size, num_symbols)
    )
    p = 0.0 if keep is None else p_dropout
    sizes = size, states.shape[2], dim, taps // 2, p
    loop = _attention_forward(settings, *sizes)
    if differentiable:  # not in autograd's thread: it is no place to compile and capture
        _attention_backward(settings, *sizes, False)
    entries = _lstm_entries(keep, states, state_weight, operand_dtype, gates, cells) | {
        "SYMBOLS": num_symbols,
        "OPERANDS": _operands(states, operand_dtype),
        "QUERY_WEIGHT": query_weight.T.contiguous(),
        "QUERY_PARTS": _empty(-(-size // UNITS), batch_size, dim, **_options(memory)),
        "PAST": past,
        "PROCESSED_MEMORY": _aligned(processed_memory),
        "MEMORY": _aligned(memory),
        "MASK": _aligned(mask),
        "LOCATION_WEIGHT": location_weight.T.contiguous(),
        "V": _aligned(v),
        "ALIGNMENTS": alignments,
    }
    _run(loop, num_steps, entries)


def decoder_forward(
    operand_dtype: torch.dtype,
    keep: torch.Tensor | None,  # [T, B, H] bool
    p_dropout: float,
    hidden_weight: torch.Tensor,  # [4 * H, H]
    gates: torch.Tensor,  # [T, B, 4 * H], the inputs' share; activated on return
    cells: torch.Tensor,  # [T, B, H], written
    outputs: torch.Tensor,  # [T, B, H + E], of which the first H are written
    differentiable: bool,
) -> None:
    """All steps of the decoder LSTM."""
    num_steps, batch_size, size = cells.shape
    settings = _settings(cells.device, cells.dtype, operand_dtype, bucket(batch_size, 1))
    sizes = size, outputs.shape[2], 0.0 if keep is None else p_dropout
    loop = _decoder_forward(settings, *sizes)
    if differentiable:
        _decoder_backward(settings, *sizes)
    entries = _lstm_entries(keep, outputs, hidden_weight, operand_dtype, gates, cells)
    entries["OPERANDS"] = _operands(outputs, operand_dtype)
    _run(loop, num_steps, entries)


class AttentionBackward:
    """The attention recurrence backwards; `gates` become their gradients."""

    def __init__(
        self,
        operand_dtype: torch.dtype,
        keep: torch.Tensor | None,
        p_dropout: float,
        memory: torch.Tensor,  # [B, N, E]
        state_weight: torch.Tensor,  # [4 * A, A + E]
        query_weight: torch.Tensor,  # [D, A]
        kernel_size: int,  # K
        gates: torch.Tensor,  # [T, B, 4 * A], activated
        cells: torch.Tensor,  # [T, B, A]
        states: torch.Tensor,  # [T, B, A + E]
        alignments: torch.Tensor,  # [T, B, N]
        grad_states: torch.Tensor,  # [T, B, A + E]
        grad_alignments: torch.Tensor | None,  # [T, B, N]
        dcontexts: torch.Tensor,  # [T, B, E], written
        dqueries: torch.Tensor,  # [T, B, D], written
    ):
        (_, batch_size, size), (dim, _) = cells.shape, query_weight.shape
        num_symbols, width = memory.shape[1], states.shape[2]
        settings = _settings(
            memory.device, memory.dtype, operand_dtype, bucket(batch_size, num_symbols)
        )
        p = 0.0 if keep is None else p_dropout
        alignments_too = grad_alignments is not None
        self.loop = _attention_backward(settings, size, width, dim, kernel_size, p, alignments_too)
        scratch = functools.partial(_empty, **_options(memory))
        self.entries = _lstm_entries(keep, states, state_weight, operand_dtype, gates, cells) | {
            "SYMBOLS": num_symbols,
            "PARTIALS": scratch(-(-4 * size // SPLIT), batch_size, width),
            "GRAD_ROWS": _aligned(grad_states),
            "DCELL": cells.new_zeros(batch_size, size),
            "QUERY_WEIGHT": _aligned(query_weight),
            "QUERY_PARTS": scratch(-(-num_symbols // SYMBOLS), batch_size, dim),
            "MEMORY": _aligned(memory),
            "ALIGNMENTS": _aligned(alignments),
            "GRAD_ALIGNMENTS": _aligned(grad_alignments) if alignments_too else 0,
            "DCONTEXTS": dcontexts,
            "DQUERIES": dqueries,
            "CARRIED": memory.new_zeros(batch_size, num_symbols),
            "DCUMULATIVE": memory.new_zeros(batch_size, num_symbols),
        }

    def run(
        self,
        start: int,
        stop: int,
        slopes: torch.Tensor,  # [stop - start, B, N, D]
        filters: torch.Tensor,  # [stop - start, B, 2 * K, N]
        denergies: torch.Tensor,  # [stop - start, B, N], written
    ) -> None:
        """The steps `stop` - 1 down to `start`, at most CHUNK; later ones are done already."""
        buffers = {"SLOPES": slopes, "FILTERS": filters}
        self.loop.run(start, stop, {**self.entries, **buffers, "DENERGIES": denergies})


def decoder_backward(
    operand_dtype: torch.dtype,
    keep: torch.Tensor | None,
    p_dropout: float,
    hidden_weight: torch.Tensor,  # [4 * H, H]
    gates: torch.Tensor,  # [T, B, 4 * H], activated; become their gradients
    cells: torch.Tensor,  # [T, B, H]
    grad_outputs: torch.Tensor,  # [T, B, H + E]
) -> None:
    """All steps of the decoder LSTM, backwards."""
    num_steps, batch_size, size = cells.shape
    settings = _settings(cells.device, cells.dtype, operand_dtype, bucket(batch_size, 1))
    width = grad_outputs.shape[2]
    loop = _decoder_backward(settings, size, width, 0.0 if keep is None else p_dropout)
    entries = _lstm_entries(keep, 0, hidden_weight, operand_dtype, gates, cells) | {
        "PARTIALS": _empty(-(-4 * size // SPLIT), batch_size, size, **_options(cells)),
        "GRAD_ROWS": _aligned(grad_outputs),
        "DCELL": cells.new_zeros(batch_size, size),
    }
    for stop in range(num_steps, 0, -CHUNK):
        loop.run(max(stop - CHUNK, 0), stop, entries)
