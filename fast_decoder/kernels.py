"""Define the Triton kernels that run the decoder LSTMs, attention and the encoder LSTM in training.
recurrences.py contains the formulas.

graphs.py launches the kernels. `attention_slopes` and `attention_sums` process a whole chunk of
steps at once, because no step depends on the results of these two kernels. `next_chunk` runs after
each chunk.

The first argument of each kernel is an int64 table on the device. The table contains the steps to
run, the sizes, and the addresses of all buffers. Only the table contains sizes and addresses, so
one captured graph can be used for batches of any length, and no tensor needs padding. `offset` is
the index of the step within a graph, counted from the first step in the forward pass and from the
last step in the backward pass. Program instances for steps beyond the end of a batch return at once.

Three kinds of sums are split over several program instances: matrix products, the query and the
energies. Each program instance writes a partial sum. The program instance that needs the whole sum adds the
partial sums in a fixed order. No kernel uses atomic operations, so results are bitwise
reproducible.

Dimensions: T, B, N, D, E and K are the same as in recurrences.py. S is the size of an LSTM. W is
the width of a row, which contains a hidden state and a context.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
# Indices into the table of pointers and sizes. A graph runs the decoder steps from START to
# STOP - 1. STEPS is the total number of decoder steps.
START, STOP, STEPS, BATCH, SYMBOLS = (tl.constexpr(place) for place in range(5))
# Addresses of the LSTM buffers.
WEIGHT = tl.constexpr(5)  # [4 * S, inner], recurrent weight
# [T, B, 4 * S]. The buffer at first contains the gates before activation, later the activated
# gates, and finally their gradients.
GATES = tl.constexpr(6)
CELLS = tl.constexpr(7)  # [T, B, S]
KEEP = tl.constexpr(8)  # bool [T, B, S]
ROWS_OUT = tl.constexpr(9)  # [T, B, W], hidden state and context
OPERANDS = tl.constexpr(10)  # [T, B, W], a copy of ROWS_OUT in the dtype of matrix products
# [splits, B, inner], partial sums of the gradient of a step's hidden state. If inner is W, the last
# columns are partial sums of the gradient of the step's context.
PARTIALS = tl.constexpr(11)
# [T, B, W], gradient of hidden states and contexts, without the contribution of later steps.
GRAD_ROWS = tl.constexpr(12)
DCELL = tl.constexpr(13)  # [B, S], contribution of later steps to the gradient of the cells
# Addresses of the attention buffers.
QUERY_WEIGHT = tl.constexpr(14)  # [S, D] in the forward pass, [D, S] in the backward pass
QUERY_PARTS = tl.constexpr(15)  # [parts, B, D], partial sums of the query or of its gradient
PAST = tl.constexpr(16)  # [T, B, 2, N + K - 1]
PROCESSED_MEMORY = tl.constexpr(17)  # [B, N, D]
MEMORY = tl.constexpr(18)  # [B, N, E]
MASK = tl.constexpr(19)  # bool [B, N], True at padding
LOCATION_WEIGHT = tl.constexpr(20)  # [2 * K, D]
V = tl.constexpr(21)  # [D]
ALIGNMENTS = tl.constexpr(22)  # [T, B, N]
GRAD_ALIGNMENTS = tl.constexpr(23)  # [T, B, N]; address 0 if the loss does not depend on alignments
# [C, B, N, D], the tanh that attention computes, for the C steps of a chunk.
TANH = tl.constexpr(24)
FILTERS = tl.constexpr(25)  # [C, B, 2 * K, N], the product of location_weight^T and the slopes
DENERGIES = tl.constexpr(26)  # [C, B, N]
DCONTEXTS = tl.constexpr(27)  # [T, B, E]
DQUERIES = tl.constexpr(28)  # [T, B, D]
# [B, N], the part of an alignment's gradient that comes from the windows of later steps.
CARRIED = tl.constexpr(29)
DCUMULATIVE = tl.constexpr(30)  # [B, N]
QUERIES = tl.constexpr(31)  # [T, B, D]
# The decoder steps form G groups. The next three buffers contain partial sums of gradients over the
# decoder steps of each group. DKEYS has one partial sum per group. DV and DLOCATION have one partial
# sum for each group, each clip and each symbol block.
DKEYS = tl.constexpr(32)  # [G, B, N, D], gradient of the processed memory
DV = tl.constexpr(33)  # [G, B, number of symbol blocks, D]
DLOCATION = tl.constexpr(34)  # [G, B, number of symbol blocks, 2 * K, D]
# [parts, B, N], partial sums of the energies over attention dimensions; -inf at padding.
ENERGIES = tl.constexpr(35)
# [T, B, 4 * S], the gradients of the gates in the dtype of matrix products. DGATES may be the same
# buffer as GATES.
DGATES = tl.constexpr(36)
TABLE_SIZE = 37


@triton.jit
def _buffer(table, place, dtype: tl.constexpr):
    """Return a pointer to the buffer whose address is at index `place` of the table.

    PyTorch aligns buffers to 16 bytes, so a load can read several values at once.
    """
    return tl.multiple_of(tl.load(table + place).to(tl.pointer_type(dtype)), 16)


@triton.jit
def _wait(EARLY: tl.constexpr, LET_NEXT: tl.constexpr = True):
    """Wait until the previous launch has finished, and allow the next launch to start.

    The program instances of the next launch then start, call this function too, and wait for this
    launch. Every program instance must call this function, even if it has nothing to compute.

    Before this call, a program instance may read only the following values:

    - the table,
    - buffers that no earlier launch of the same graph writes,
    - values that were written two or more launches ago.

    A multiprocessor's own cache may keep a 32-byte sector that was loaded before this call. Later
    loads of other values from this sector must use `.cg`, which bypasses the cache. During a
    capture, the table contains only zeros, and there are no buffers.

    If LET_NEXT is False, the next launch starts only after all program instances of this launch have
    ended. Set LET_NEXT to False if the GPU cannot run all program instances of this launch and of the
    next launch at the same time. With LET_NEXT=True, the program instances of the next launch would
    crowd onto the few free multiprocessors.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        if LET_NEXT:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _tanh(x):
    """Compute tanh(x) from exp(-2 |x|), which cannot overflow.

    Near 0, where this formula would lose digits, the result is the sum of the first terms of the
    Taylor series. The omitted terms of the series add up to less than 1e-11 of the result.
    """
    e = tl.exp(-2 * tl.abs(x))
    y = (1 - e) / (1 + e)
    square = x * x
    series = 17.0 / 315 - square * (62.0 / 2835)
    series = 1 - square * (1.0 / 3 - square * (2.0 / 15 - square * series))
    return tl.where(tl.abs(x) < 0.125, x * series, tl.where(x < 0, -y, y))


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    # Without this conversion, Triton's interpreter would multiply the bits of bf16 values as
    # integers.
    if INTERPRETED:
        a, b = a.to(total.dtype), b.to(total.dtype)
    return tl.dot(a, b, total, input_precision=PRECISION, out_dtype=total.dtype)


@triton.jit
def _product(
    rows,  # [ROWS], addresses of the rows of the first matrix
    has_row,
    columns,  # [COLUMNS], addresses of the columns of the second matrix
    has_column,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    WARPS: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the matrix product [ROWS, COLUMNS].

    Each iteration reads BLOCK values of the inner dimension. If WARPS > 1, each warp sums over its
    own part of every block. Using several warps shortens the chain of dependent products. The
    per-warp sums are added in a fixed order.
    """
    if WARPS == 1:
        total = tl.zeros((rows.shape[0], columns.shape[0]), DTYPE)
    else:
        total = tl.zeros((WARPS, rows.shape[0], columns.shape[0]), DTYPE)
    for start in range(0, INNER, BLOCK):
        if WARPS == 1:
            k = start + tl.arange(0, BLOCK)
            inside = k < INNER
            x = tl.load(rows[:, None] + k[None, :], has_row[:, None] & inside[None, :], 0.0)
            in_columns = has_column[None, :] & inside[:, None]
            w = tl.load(columns[None, :] + k[:, None], in_columns, 0.0)
        else:
            share: tl.constexpr = BLOCK // WARPS
            k = start + tl.arange(0, WARPS)[:, None] * share + tl.arange(0, share)[None, :]
            inside = k < INNER
            in_rows = has_row[None, :, None] & inside[:, None, :]
            x = tl.load(rows[None, :, None] + k[:, None, :], in_rows, 0.0)
            in_columns = has_column[None, None, :] & inside[:, :, None]
            w = tl.load(columns[None, None, :] + k[:, :, None], in_columns, 0.0)
        total = _dot(x, w, total, PRECISION)
    return total if WARPS == 1 else tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["offset"])
def lstm_step(
    table,
    offset,
    scale,  # factor for values that dropout keeps
    SIZE: tl.constexpr,  # S
    WIDTH: tl.constexpr,  # W
    INNER: tl.constexpr,  # inner dimension of the matrix product
    QUERY: tl.constexpr,  # attention dimension, D; 0 if no attention follows the LSTM
    QUERY_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,  # clips per program
    UNITS: tl.constexpr,  # cells per program
    BLOCK: tl.constexpr,  # number of values of the inner dimension that each iteration reads
    WARPS: tl.constexpr,  # number of warps that split the inner dimension
    DROPOUT: tl.constexpr,
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    QUERY_PRECISION: tl.constexpr,
    EARLY: tl.constexpr,  # whether the kernel starts before the previous kernel has finished
):
    """Compute one step of an LSTM, and partial sums of the query over the LSTM cells.

    Program ids: (units, clips). The kernel multiplies the state of the previous step by the
    recurrent weight, and adds the product to the gates. The columns of a program instance are the gates
    i, f, g, o of its first unit, then the gates of its second unit, and so on.
    """
    t = tl.load(table + START) + offset
    batch = tl.load(table + BATCH)
    has_step = t < tl.load(table + STOP)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    column = tl.arange(0, 4 * UNITS)
    column_unit = tl.program_id(0) * UNITS + column // 4
    weight_row = column % 4 * SIZE + column_unit
    has_row = row < tl.where(has_step, batch, 0)  # `&` with a scalar fails in Triton's interpreter
    has_past = row < tl.where(has_step & (t > 0), batch, 0)
    inside = has_row[:, None] & (unit < SIZE)[None, :]

    step = t * batch + row  # row indices in buffers [T, B, ...]
    before = _buffer(table, OPERANDS, OPERAND) + (step - batch) * WIDTH
    weight = _buffer(table, WEIGHT, OPERAND) + weight_row * INNER
    gates = _buffer(table, GATES, DTYPE) + step[:, None] * (4 * SIZE) + weight_row[None, :]
    has_column = column_unit < SIZE
    gates = tl.load(gates, has_row[:, None] & has_column[None, :], 0.0)
    if DROPOUT:
        keep = _buffer(table, KEEP, tl.int8) + step[:, None] * SIZE + unit[None, :]
        keep = tl.load(keep, inside, 0)
    if QUERY > 0:
        dim = tl.arange(0, QUERY_BLOCK)
        place = tl.arange(0, 2 * UNITS)
        place_unit = tl.program_id(0) * UNITS + place // 2
        in_units = (place % 2 == 0) & (place_unit < tl.where(has_step, SIZE, 0))
        in_query = in_units[:, None] & (dim < QUERY)[None, :]
        query_weight = _buffer(table, QUERY_WEIGHT, DTYPE) + place_unit[:, None] * QUERY
        query_weight = tl.load(query_weight + dim[None, :], in_query, 0.0)
    in_past = inside & has_past[:, None]
    cells = _buffer(table, CELLS, DTYPE) + (step - batch)[:, None] * SIZE + unit[None, :]
    # The cells can be read before `_wait`, because they were written at least two launches ago.
    if QUERY > 0:
        cell = tl.load(cells, in_past, 0.0, cache_modifier=".cg")
    _wait(EARLY)
    if not has_step:
        return
    if QUERY == 0:
        cell = tl.load(cells, in_past, 0.0)
    total = gates + _product(
        before, has_past, weight, has_column, INNER, BLOCK, WARPS, DTYPE, PRECISION
    )
    hidden = _lstm_cell(table, total, cell, step, unit, inside, SIZE, DTYPE)
    if DROPOUT:
        hidden = tl.where(keep != 0, hidden * scale, 0.0)
    place = step[:, None] * WIDTH + unit[None, :]
    tl.store(_buffer(table, ROWS_OUT, DTYPE) + place, hidden, inside)
    if OPERAND != DTYPE:
        tl.store(_buffer(table, OPERANDS, OPERAND) + place, hidden.to(OPERAND), inside)
    if QUERY > 0:
        # Tensor cores need an inner dimension of 16. Therefore each unit is duplicated, and the
        # weights of the duplicates are 0. Do not use tl.join to pad the units with zeros. With
        # tl.join, Triton 3.6 added some values twice on an H200.
        hidden = tl.where(inside, hidden, 0.0)[:, :, None]
        hidden = tl.reshape(tl.broadcast_to(hidden, (ROWS, UNITS, 2)), (ROWS, 2 * UNITS))
        part = tl.zeros((ROWS, QUERY_BLOCK), DTYPE)
        part = _dot(hidden, query_weight, part, QUERY_PRECISION)
        places = (tl.program_id(0) * batch + row)[:, None] * QUERY + dim[None, :]
        in_part = has_row[:, None] & (dim < QUERY)[None, :]
        tl.store(_buffer(table, QUERY_PARTS, DTYPE) + places, part, in_part)


@triton.jit
def _lstm_cell(table, total, cell, step, unit, inside, SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Return the hidden state [rows, units] before dropout, and store gates and cell states.

    Args:
        total: the gates before activation [rows, 4 * units].
        cell: the cell states of the previous step [rows, units].
    """
    rows: tl.constexpr = total.shape[0]
    units: tl.constexpr = total.shape[1] // 4
    i_and_g, f_and_o = tl.split(tl.reshape(total, (rows, units, 2, 2)))
    i, g = tl.split(i_and_g)
    f, o = tl.split(f_and_o)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    gates = _buffer(table, GATES, DTYPE) + step[:, None] * (4 * SIZE) + unit[None, :]
    tl.store(gates, i, inside)
    tl.store(gates + SIZE, f, inside)
    tl.store(gates + 2 * SIZE, g, inside)
    tl.store(gates + 3 * SIZE, o, inside)
    cell = f * cell + i * g
    tl.store(_buffer(table, CELLS, DTYPE) + step[:, None] * SIZE + unit[None, :], cell, inside)
    return o * _tanh(cell)


@triton.jit(do_not_specialize=["offset"])
def attention_energies(
    table,
    offset,
    PARTS: tl.constexpr,  # number of program instances into which lstm_step divides the LSTM cells
    PARTS_BLOCK: tl.constexpr,
    DIM: tl.constexpr,  # D
    DIMS: tl.constexpr,  # dimensions per program
    KERNEL: tl.constexpr,  # K
    TAPS_BLOCK: tl.constexpr,  # number of taps in a block, at least 2 * K
    SYMBOLS_BLOCK: tl.constexpr,  # symbols per program
    AHEAD: tl.constexpr,  # whether to load the past attention weights before `_wait`
    LET_NEXT: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute the energies v . tanh(processed_memory + query + location), which are -inf at
    padding.

    Program ids: (clip, symbols, dimensions). Each program instance sums over some of the D attention
    dimensions.
    """
    t = tl.load(table + START) + offset
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    clip = tl.program_id(0)
    first = tl.program_id(1) * SYMBOLS_BLOCK
    nothing = (t >= tl.load(table + STOP)) | (clip >= batch) | (first >= symbols)
    n = first + tl.arange(0, SYMBOLS_BLOCK)
    dim, tap = tl.arange(0, DIMS), tl.arange(0, TAPS_BLOCK)
    if DIMS < DIM:
        dim += tl.program_id(2) * DIMS
    has_symbol, has_dim = n < tl.where(nothing, 0, symbols), dim < tl.where(nothing, 0, DIM)
    keys = _buffer(table, PROCESSED_MEMORY, DTYPE) + (clip * symbols + n[:, None]) * DIM
    pre = tl.load(keys + dim[None, :], has_symbol[:, None] & has_dim[None, :], 0.0)
    padding = tl.load(_buffer(table, MASK, tl.int8) + clip * symbols + n, has_symbol, 1)
    v = tl.load(_buffer(table, V, DTYPE) + dim, has_dim, 0.0)
    location_weight = _buffer(table, LOCATION_WEIGHT, DTYPE) + tap[:, None] * DIM + dim[None, :]
    in_location = (tap < 2 * KERNEL)[:, None] & has_dim[None, :]
    location_weight = tl.load(location_weight, in_location, 0.0)
    past = _buffer(table, PAST, DTYPE) + (t * batch + clip) * 2 * (symbols + KERNEL - 1)
    if AHEAD:
        pre = _with_windows(pre, past, n, symbols, has_symbol, location_weight, KERNEL, PRECISION)
    _wait(EARLY, LET_NEXT)
    if nothing:
        return
    if not AHEAD:
        pre = _with_windows(pre, past, n, symbols, has_symbol, location_weight, KERNEL, PRECISION)
    parts = _buffer(table, QUERY_PARTS, DTYPE) + clip * DIM + dim[None, :]
    query = tl.zeros((DIMS,), DTYPE)
    for start in tl.static_range(0, PARTS, PARTS_BLOCK):
        part = start + tl.arange(0, PARTS_BLOCK)
        in_parts = (part < PARTS)[:, None] & has_dim[None, :]
        query += tl.sum(tl.load(parts + part[:, None] * (batch * DIM), in_parts, 0.0), axis=0)
    energy = tl.sum(_tanh(pre + query[None, :]) * v[None, :], axis=1)
    energy = tl.where(padding != 0, float("-inf"), energy)
    energies = _buffer(table, ENERGIES, DTYPE) + clip * symbols
    if DIMS < DIM:
        energies += tl.program_id(2) * batch * symbols
    tl.store(energies + n, energy, has_symbol)


@triton.jit
def _with_windows(
    pre,  # [symbols per program, dimensions per program]
    past,  # address of the previous and the cumulative alignment [2, N + K - 1]
    n,
    symbols,
    has_symbol,
    location_weight,  # [taps, dimensions per program]
    KERNEL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return `pre` plus the product of the location weight and the windows of past alignments."""
    # A 32-byte sector may contain the end of the previous step's values, which were read earlier,
    # and the beginning of this step's values. The L1 cache may then contain an outdated copy of the
    # sector. With 15 or more taps, the outdated copy does no harm: each step's values begin with
    # zeros (padding), and the sector contains no other values of this step.
    CACHE: tl.constexpr = ".cg" if KERNEL < 15 else ""
    tap = tl.arange(0, location_weight.shape[0])
    places = n[:, None] + (tap // KERNEL * (symbols + KERNEL - 1) + tap % KERNEL)[None, :]
    inside = has_symbol[:, None] & (tap < 2 * KERNEL)[None, :]
    window = tl.load(past + places, inside, 0.0, cache_modifier=CACHE)
    return _dot(window, location_weight, pre, PRECISION)


@triton.jit(do_not_specialize=["offset"])
def attention_context(
    table,
    offset,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    KERNEL: tl.constexpr,
    ENERGY_PARTS: tl.constexpr,  # number of partial sums of the energies
    COLUMNS: tl.constexpr,  # context columns per program
    SYMBOLS_BLOCK: tl.constexpr,  # size of a block that contains all symbols of a clip
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute the alignment and the context of step t, and the windows for step t + 1.

    Program ids: (clip, columns).
    """
    t = tl.load(table + START) + offset
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    clip = tl.program_id(0)
    nothing = (t >= tl.load(table + STOP)) | (clip >= batch)
    n = tl.arange(0, SYMBOLS_BLOCK)
    has_symbol = n < tl.where(nothing, 0, symbols)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_context = column < WIDTH - SIZE
    memory = _buffer(table, MEMORY, DTYPE) + (clip * symbols + n[:, None]) * (WIDTH - SIZE)
    memory = tl.load(memory + column[None, :], has_symbol[:, None] & in_context[None, :], 0.0)
    energies = _buffer(table, ENERGIES, DTYPE) + clip * symbols + n
    step = t * batch + clip
    width = symbols + KERNEL - 1
    past = _buffer(table, PAST, DTYPE) + step * 2 * width + KERNEL // 2
    has_past = n < tl.where(nothing | (tl.program_id(1) > 0), 0, symbols)
    cumulative = tl.load(past + width + n, has_past, 0.0)
    _wait(EARLY)
    if nothing:
        return
    energy = tl.load(energies, has_symbol, float("-inf"))
    for part in tl.static_range(1, ENERGY_PARTS):
        energy += tl.load(energies + part * batch * symbols, has_symbol, 0.0)
    share = tl.exp(energy - tl.max(energy, axis=0))
    alignment = share / tl.sum(share, axis=0)
    context = tl.sum(alignment[:, None] * memory, axis=0)
    place = step * WIDTH + SIZE + column
    tl.store(_buffer(table, ROWS_OUT, DTYPE) + place, context, in_context)
    if OPERAND != DTYPE:
        tl.store(_buffer(table, OPERANDS, OPERAND) + place, context.to(OPERAND), in_context)
    if tl.program_id(1) == 0:
        tl.store(_buffer(table, ALIGNMENTS, DTYPE) + step * symbols + n, alignment, has_symbol)
        cumulative += alignment
        following = n < tl.where(t + 1 < tl.load(table + STEPS), symbols, 0)
        past += batch * 2 * width
        tl.store(past + n, alignment, following)
        tl.store(past + width + n, cumulative, following)


@triton.jit(do_not_specialize=["offset"])
def gradient_product(
    table,
    offset,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # result columns per program
    SPLIT: tl.constexpr,  # gates per program
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Multiply the gate gradients of the next step by the recurrent weight, and store partial sums
    of the product (PARTIALS). At the last step, the partial sums are 0.

    Program ids: (columns, split, clips).
    """
    t = tl.load(table + STOP) - 1 - offset
    batch = tl.load(table + BATCH)
    has_step = t >= tl.load(table + START)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * SPLIT
    has_next = row < tl.where(t + 1 < tl.load(table + STEPS), batch, 0)
    dgates = _buffer(table, DGATES, OPERAND) + ((t + 1) * batch + row)[:, None] * (4 * SIZE)
    weight = _buffer(table, WEIGHT, OPERAND) + column[None, :]
    partials = _buffer(table, PARTIALS, DTYPE)
    _wait(EARLY)
    if not has_step:
        return
    total = tl.zeros((ROWS, COLUMNS), DTYPE)
    for start in range(0, SPLIT, BLOCK):
        within = start + tl.arange(0, BLOCK)
        k = first + within
        in_split = (within < SPLIT) & (k < 4 * SIZE)
        x = tl.load(dgates + k[None, :], has_next[:, None] & in_split[None, :], 0.0)
        in_weight = in_split[:, None] & (column < INNER)[None, :]
        w = tl.load(weight + k[:, None] * INNER, in_weight, 0.0)
        total = _dot(x.to(OPERAND), w, total, PRECISION)
    places = (tl.program_id(1) * batch + row)[:, None] * INNER + column[None, :]
    inside = (row < batch)[:, None] & (column < INNER)[None, :]
    tl.store(partials + places, total, inside)


@triton.jit(do_not_specialize=["offset"])
def attention_gradient(
    table,
    offset,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    CONTEXT_BLOCK: tl.constexpr,
    MAX_SYMBOLS: tl.constexpr,
    SYMBOLS_BLOCK: tl.constexpr,  # symbols per program
    DTYPE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Compute the gradients of the energies (denergy) of some symbols, and the part of the query
    gradient that comes from these symbols.

    Program ids: (clip, symbols). The softmax backward pass subtracts the sum of alignment_n *
    dalignment_n over all symbols n. The part of this sum that comes from the context equals
    dcontext . context. Only the rest is summed over the symbols. Each program instance computes the
    whole sum, so that no program instance waits for another program instance.
    """
    t = tl.load(table + STOP) - 1 - offset
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    clip, first = tl.program_id(0), tl.program_id(1) * SYMBOLS_BLOCK
    nothing = (t < tl.load(table + START)) | (clip >= batch) | (first >= symbols)
    num_symbols = tl.where(nothing, 0, symbols)
    context_size: tl.constexpr = WIDTH - SIZE
    num_columns = tl.where(nothing, 0, context_size)
    n, m = first + tl.arange(0, SYMBOLS_BLOCK), tl.arange(0, MAX_SYMBOLS)
    dim = tl.arange(0, DIM_BLOCK)
    has_dim = dim < tl.where(nothing, 0, DIM)
    step = t * batch + clip
    alignments = _buffer(table, ALIGNMENTS, DTYPE) + step * symbols
    alignment = tl.load(alignments + n, n < num_symbols, 0.0)
    here = tl.load(alignments + m, m < num_symbols, 0.0)
    grad_alignments = _buffer(table, GRAD_ALIGNMENTS, DTYPE) + step * symbols
    num_grad_alignments = tl.where(tl.load(table + GRAD_ALIGNMENTS) != 0, num_symbols, 0)
    elsewhere = tl.load(grad_alignments + m, m < num_grad_alignments, 0.0)
    dalignment = tl.load(grad_alignments + n, n < num_grad_alignments, 0.0)
    v = tl.load(_buffer(table, V, DTYPE) + dim, has_dim, 0.0)
    column = tl.arange(0, CONTEXT_BLOCK)
    rows = _buffer(table, ROWS_OUT, DTYPE) + step * WIDTH + SIZE
    context = tl.load(rows + column, column < num_columns, 0.0)
    grad_rows = _buffer(table, GRAD_ROWS, DTYPE) + step * WIDTH + SIZE
    dcontext = tl.load(grad_rows + column, column < num_columns, 0.0)
    memory = _buffer(table, MEMORY, DTYPE) + (clip * symbols + n[:, None]) * context_size
    in_memory = (n < num_symbols)[:, None] & (column < num_columns)[None, :]
    values = tl.load(memory + column[None, :], in_memory, 0.0)
    carried = _buffer(table, CARRIED, DTYPE) + clip * symbols
    elsewhere += tl.load(carried + m, m < num_symbols, 0.0, cache_modifier=".cg")
    dalignment += tl.load(carried + n, n < num_symbols, 0.0, cache_modifier=".cg")
    chunk_step = (t - tl.load(table + START)) * batch + clip
    tanh = _buffer(table, TANH, DTYPE) + (chunk_step * symbols + n[:, None]) * DIM
    in_tanh = (n < num_symbols)[:, None] & has_dim[None, :]
    tanh = tl.load(tanh + dim[None, :], in_tanh, 0.0, cache_modifier=".cg")
    _wait(EARLY)
    if nothing:
        return
    partials = _buffer(table, PARTIALS, DTYPE) + clip * WIDTH + SIZE
    for split in tl.static_range(SPLITS):
        dcontext += tl.load(partials + split * batch * WIDTH + column, column < context_size, 0.0)
    if tl.program_id(1) == 0:
        dcontexts = _buffer(table, DCONTEXTS, DTYPE) + step * context_size
        tl.store(dcontexts + column, dcontext, column < context_size)
    inner = tl.sum(dcontext * context, axis=0) + tl.sum(elsewhere * here, axis=0)
    dalignment += tl.sum(values * dcontext[None, :], axis=1)
    denergy = alignment * (dalignment - inner)
    tl.store(_buffer(table, DENERGIES, DTYPE) + chunk_step * symbols + n, denergy, n < symbols)
    part = tl.sum(denergy[:, None] * (1 - tanh * tanh), axis=0) * v
    places = (tl.program_id(1) * batch + clip) * DIM + dim
    tl.store(_buffer(table, QUERY_PARTS, DTYPE) + places, part, has_dim)


@triton.jit(do_not_specialize=["offset"])
def cell_gradient(
    table,
    offset,
    scale,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    SPLITS: tl.constexpr,
    QUERY: tl.constexpr,  # attention dimension, D; 0 if no attention follows the LSTM
    QUERY_BLOCK: tl.constexpr,
    WARPS: tl.constexpr,
    SYMBOLS_A_PART: tl.constexpr,  # symbols per partial sum of the query gradient
    KERNEL: tl.constexpr,
    KERNEL_BLOCK: tl.constexpr,
    MAX_SYMBOLS: tl.constexpr,
    SYMBOLS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    DROPOUT: tl.constexpr,
    LET_NEXT: tl.constexpr,
    OPERAND: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Replace the gates of a decoder step with the gradients of the gates. Store a copy of these
    gradients in DGATES, in the dtype of matrix products.

    Program ids: (units, clips). Program instances whose first id is beyond the last unit block process
    one clip each. Such a program instance calls `_through_windows`, which uses the gradients of the
    energies to compute the gradients of the previous alignment and of the cumulative alignment.
    """
    t = tl.load(table + STOP) - 1 - offset
    batch = tl.load(table + BATCH)
    has_step = t >= tl.load(table + START)
    unit_programs: tl.constexpr = (SIZE + UNITS - 1) // UNITS
    if tl.program_id(0) >= unit_programs:
        clip = tl.program_id(1) * (tl.num_programs(0) - unit_programs)
        clip += tl.program_id(0) - unit_programs
        _wait(EARLY, LET_NEXT)
        if QUERY > 0 and has_step and clip < batch:
            _through_windows(
                table, t, clip, KERNEL, KERNEL_BLOCK, MAX_SYMBOLS, SYMBOLS_BLOCK, DTYPE
            )
        return
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    has_row = row < tl.where(has_step, batch, 0)
    has_past = row < tl.where(has_step & (t > 0), batch, 0)
    inside = has_row[:, None] & (unit < SIZE)[None, :]
    step = t * batch + row
    dhidden = _buffer(table, GRAD_ROWS, DTYPE) + step[:, None] * WIDTH + unit[None, :]
    dhidden = tl.load(dhidden, inside, 0.0)
    here = step[:, None] * SIZE + unit[None, :]
    if DROPOUT:
        keep = tl.load(_buffer(table, KEEP, tl.int8) + here, inside, 0)
    gates = _buffer(table, GATES, DTYPE) + step[:, None] * (4 * SIZE) + unit[None, :]
    i, f = tl.load(gates, inside, 0.0), tl.load(gates + SIZE, inside, 0.0)
    g, o = tl.load(gates + 2 * SIZE, inside, 0.0), tl.load(gates + 3 * SIZE, inside, 0.0)
    cells = _buffer(table, CELLS, DTYPE) + here
    tanh_cell = _tanh(tl.load(cells, inside, 0.0))
    previous = tl.load(cells - batch * SIZE, inside & has_past[:, None], 0.0)
    if QUERY > 0:
        # Each warp computes the product with the query weight for D / WARPS attention dimensions.
        share: tl.constexpr = QUERY_BLOCK // WARPS
        dim = tl.arange(0, WARPS)[:, None] * share + tl.arange(0, share)[None, :]
        in_weight = (dim < tl.where(has_step, QUERY, 0))[:, :, None] & (unit < SIZE)[None, None, :]
        weight = dim[:, :, None] * SIZE + unit[None, None, :]
        weight = tl.load(_buffer(table, QUERY_WEIGHT, DTYPE) + weight, in_weight, 0.0)
    _wait(EARLY, LET_NEXT)
    if not has_step:
        return
    partials = _buffer(table, PARTIALS, DTYPE) + row[:, None] * INNER + unit[None, :]
    for split in tl.static_range(SPLITS):
        dhidden += tl.load(partials + split * batch * INNER, inside, 0.0)
    if QUERY > 0:
        dhidden += _through_query(
            table, step, row, has_row, dim, weight, QUERY, MAX_SYMBOLS, SYMBOLS_A_PART, PRECISION
        )
    if DROPOUT:
        dhidden = tl.where(keep != 0, dhidden * scale, 0.0)
    dcells = _buffer(table, DCELL, DTYPE) + row[:, None] * SIZE + unit[None, :]
    dcell = tl.load(dcells, inside, 0.0) + dhidden * o * (1 - tanh_cell * tanh_cell)
    tl.store(dcells, dcell * f, inside)
    di, df = dcell * g * i * (1 - i), dcell * previous * f * (1 - f)
    dg, do = dcell * i * (1 - g * g), dhidden * tanh_cell * o * (1 - o)
    tl.store(gates, di, inside)
    tl.store(gates + SIZE, df, inside)
    tl.store(gates + 2 * SIZE, dg, inside)
    tl.store(gates + 3 * SIZE, do, inside)
    if OPERAND != DTYPE:
        dgates = _buffer(table, DGATES, OPERAND) + step[:, None] * (4 * SIZE) + unit[None, :]
        tl.store(dgates, di.to(OPERAND), inside)
        tl.store(dgates + SIZE, df.to(OPERAND), inside)
        tl.store(dgates + 2 * SIZE, dg.to(OPERAND), inside)
        tl.store(dgates + 3 * SIZE, do.to(OPERAND), inside)


@triton.jit
def _through_query(
    table,
    step,
    row,
    has_row,
    dim,  # [warps, D / warps], indices of attention dimensions
    weight,  # [warps, D / warps, units], part of the query weight
    QUERY: tl.constexpr,
    MAX_SYMBOLS: tl.constexpr,
    SYMBOLS_A_PART: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the part of the hidden state's gradient [rows, units] that flows through the query,
    and store the gradient of the query (DQUERIES)."""
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    parts = row[None, :, None] * QUERY + dim[:, None, :]
    parts = _buffer(table, QUERY_PARTS, weight.dtype) + parts
    dquery = tl.zeros((dim.shape[0], row.shape[0], dim.shape[1]), weight.dtype)
    for part in tl.static_range(MAX_SYMBOLS // SYMBOLS_A_PART):
        rows_of_part = row < tl.where(part * SYMBOLS_A_PART < symbols, batch, 0)
        in_part = rows_of_part[None, :, None] & (dim < QUERY)[:, None, :]
        dquery += tl.load(parts + part * batch * QUERY, in_part, 0.0)
    if tl.program_id(0) == 0:
        dqueries = step[None, :, None] * QUERY + dim[:, None, :]
        in_query = has_row[None, :, None] & (dim < QUERY)[:, None, :]
        tl.store(_buffer(table, DQUERIES, weight.dtype) + dqueries, dquery, in_query)
    by_warp = tl.zeros((dim.shape[0], row.shape[0], weight.shape[2]), weight.dtype)
    return tl.sum(_dot(dquery, weight, by_warp, PRECISION), axis=0)


@triton.jit
def _through_windows(
    table,
    t,
    clip,
    KERNEL: tl.constexpr,
    KERNEL_BLOCK: tl.constexpr,
    MAX_SYMBOLS: tl.constexpr,
    SYMBOLS_BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Compute the gradients of the alignment (CARRIED) and of the cumulative alignment
    (DCUMULATIVE) of step t - 1.

    In the window of symbol n, symbol m is at tap m - n + K // 2.
    """
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    chunk_step = (t - tl.load(table + START)) * batch + clip
    denergies = _buffer(table, DENERGIES, DTYPE) + chunk_step * symbols
    filters = _buffer(table, FILTERS, DTYPE) + chunk_step * 2 * KERNEL * symbols
    cumulative = _buffer(table, DCUMULATIVE, DTYPE) + clip * symbols
    carried = _buffer(table, CARRIED, DTYPE) + clip * symbols
    tap = tl.arange(0, KERNEL_BLOCK)
    for start in tl.static_range(0, MAX_SYMBOLS, SYMBOLS_BLOCK):
        m = start + tl.arange(0, SYMBOLS_BLOCK)
        n = m[None, :] + KERNEL // 2 - tap[:, None]
        inside = (n >= 0) & (n < symbols) & (tap < KERNEL)[:, None] & (m < symbols)[None, :]
        denergy = tl.load(denergies + n, inside, 0.0)
        of_previous = tl.load(filters + tap[:, None] * symbols + n, inside, 0.0)
        of_cumulative = tl.load(filters + (KERNEL + tap)[:, None] * symbols + n, inside, 0.0)
        dcumulative = tl.load(cumulative + m, m < symbols, 0.0)
        dcumulative += tl.sum(denergy * of_cumulative, axis=0)
        tl.store(cumulative + m, dcumulative, m < symbols)
        dprevious = tl.sum(denergy * of_previous, axis=0)
        tl.store(carried + m, dprevious + dcumulative, m < symbols)


@triton.jit
def attention_slopes(
    table,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    KERNEL: tl.constexpr,
    TAPS_BLOCK: tl.constexpr,
    SYMBOLS_BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """For all steps of a chunk, compute the tanh of attention (TANH), and the product of the
    location weight and the slopes of this tanh (FILTERS).

    Program ids: (step, symbols, clip).
    """
    nth, clip = tl.program_id(0), tl.program_id(2)
    t = tl.load(table + START) + nth
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    n = tl.program_id(1) * SYMBOLS_BLOCK + tl.arange(0, SYMBOLS_BLOCK)
    past_end = tl.program_id(1) * SYMBOLS_BLOCK >= symbols
    _wait(EARLY)
    if t >= tl.load(table + STOP) or clip >= batch or past_end:
        return
    dim, tap = tl.arange(0, DIM_BLOCK), tl.arange(0, TAPS_BLOCK)
    width = symbols + KERNEL - 1
    past = _buffer(table, PAST, DTYPE) + (t * batch + clip) * 2 * width
    in_window = (n < symbols)[:, None] & (tap < 2 * KERNEL)[None, :]
    places = n[:, None] + (tap // KERNEL * width + tap % KERNEL)[None, :]
    window = tl.load(past + places, in_window, 0.0)
    in_weight = (tap < 2 * KERNEL)[:, None] & (dim < DIM)[None, :]
    weight = _buffer(table, LOCATION_WEIGHT, DTYPE) + tap[:, None] * DIM + dim[None, :]
    weight = tl.load(weight, in_weight, 0.0)
    in_keys = (n < symbols)[:, None] & (dim < DIM)[None, :]
    places = n[:, None] * DIM + dim[None, :]
    keys = _buffer(table, PROCESSED_MEMORY, DTYPE) + clip * symbols * DIM
    query = _buffer(table, QUERIES, DTYPE) + (t * batch + clip) * DIM
    query = tl.load(query + dim, dim < DIM, 0.0)
    pre = tl.load(keys + places, in_keys, 0.0) + query[None, :]
    tanh = _tanh(_dot(window, weight, pre, PRECISION))
    row = nth.to(tl.int64) * batch + clip
    tl.store(_buffer(table, TANH, DTYPE) + row * symbols * DIM + places, tanh, in_keys)
    v = tl.load(_buffer(table, V, DTYPE) + dim, dim < DIM, 0.0)
    slopes = v[None, :] * (1 - tanh * tanh)
    filters = tl.zeros((TAPS_BLOCK, SYMBOLS_BLOCK), DTYPE)
    filters = _dot(weight, tl.trans(slopes), filters, PRECISION)
    places = (row * 2 * KERNEL + tap)[:, None] * symbols + n[None, :]
    in_filters = (tap < 2 * KERNEL)[:, None] & (n < symbols)[None, :]
    tl.store(_buffer(table, FILTERS, DTYPE) + places, filters, in_filters)


@triton.jit
def attention_sums(
    table,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    KERNEL: tl.constexpr,
    TAPS_BLOCK: tl.constexpr,
    SYMBOLS_BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Add the contributions of a chunk's steps to the gradients of the processed memory (DKEYS), of
    v (DV) and of the location weight (DLOCATION).

    Program ids: (clip, symbols, group).
    """
    batch, symbols = tl.load(table + BATCH), tl.load(table + SYMBOLS)
    start, clip, group = tl.load(table + START), tl.program_id(0), tl.program_id(2)
    num_steps = tl.load(table + STOP) - start
    n = tl.program_id(1) * SYMBOLS_BLOCK + tl.arange(0, SYMBOLS_BLOCK)
    past_end = tl.program_id(1) * SYMBOLS_BLOCK >= symbols
    _wait(EARLY)
    if num_steps == 0 or clip >= batch or past_end:
        return
    dim, tap = tl.arange(0, DIM_BLOCK), tl.arange(0, TAPS_BLOCK)
    width = symbols + KERNEL - 1
    in_keys = (n < symbols)[:, None] & (dim < DIM)[None, :]
    in_weight = (tap < 2 * KERNEL)[:, None] & (dim < DIM)[None, :]
    in_window = (tap < 2 * KERNEL)[:, None] & (n < symbols)[None, :]
    window_places = (tap // KERNEL * width + tap % KERNEL)[:, None] + n[None, :]
    key_places = n[:, None] * DIM + dim[None, :]
    past = _buffer(table, PAST, DTYPE) + (start * batch + clip) * 2 * width + window_places
    tanhs = _buffer(table, TANH, DTYPE) + clip * symbols * DIM + key_places
    denergies = _buffer(table, DENERGIES, DTYPE) + clip * symbols + n
    v = tl.load(_buffer(table, V, DTYPE) + dim, dim < DIM, 0.0)

    part = group.to(tl.int64) * batch + clip
    dkeys_places = _buffer(table, DKEYS, DTYPE) + part * symbols * DIM + key_places
    part = part * tl.cdiv(symbols, SYMBOLS_BLOCK) + tl.program_id(1)
    dv_places = _buffer(table, DV, DTYPE) + part * DIM + dim
    dlocation_places = _buffer(table, DLOCATION, DTYPE) + part * 2 * KERNEL * DIM
    dlocation_places += tap[:, None] * DIM + dim[None, :]
    dkeys = tl.load(dkeys_places, in_keys, 0.0)
    dv = tl.load(dv_places, dim < DIM, 0.0)
    dlocation = tl.load(dlocation_places, in_weight, 0.0)
    for nth in range(group, num_steps, GROUPS):
        row = nth * batch
        tanh = tl.load(tanhs + row * symbols * DIM, in_keys, 0.0)
        denergy = tl.load(denergies + row * symbols, n < symbols, 0.0)
        window = tl.load(past + row * 2 * width, in_window, 0.0)
        dv += tl.sum(denergy[:, None] * tanh, axis=0)
        dpre = denergy[:, None] * (v[None, :] * (1 - tanh * tanh))
        dkeys += dpre
        dlocation = _dot(window, dpre, dlocation, PRECISION)
    tl.store(dkeys_places, dkeys, in_keys)
    tl.store(dv_places, dv, dim < DIM)
    tl.store(dlocation_places, dlocation, in_weight)


@triton.jit
def next_chunk(table, CHUNK: tl.constexpr, BACKWARDS: tl.constexpr, EARLY: tl.constexpr):
    """Write the range of steps of the next chunk (START and STOP) to the table, so that the host
    does not need to write this range.

    The kernel needs only a single program instance.
    """
    _wait(EARLY)
    start, stop, steps = tl.load(table + START), tl.load(table + STOP), tl.load(table + STEPS)
    if BACKWARDS:
        tl.store(table + START, tl.maximum(start - CHUNK, 0))
        tl.store(table + STOP, start)
    else:
        tl.store(table + START, stop)
        tl.store(table + STOP, tl.minimum(stop + CHUNK, steps))
