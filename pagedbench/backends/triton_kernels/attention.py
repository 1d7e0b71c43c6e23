"""The attention kernel: one program attends some query rows of one sequence to one range of its keys.

One kernel serves decode and prefill, because they differ only in how many query rows there are:

- **Rows.** The query heads that share a KV head are packed with the query tokens into the rows of one matrix product
  (row = token * group + head in group), so each key is read once for all of them, and tensor cores have rows to fill.
- **Keys** come in tiles of TILE_KEYS, each key located on its own through the block table. So any block size works,
  and tiles need not agree with blocks. Tiles that every row sees whole (nearly all, in a long sequence) go through a
  loop without a mask; tiles at an edge of what is visible go through one with all of them.
- **Splits.** With few sequences the keys of each are split over several programs; each leaves a normalised partial
  output and its log-sum-exp, and `combine.py` joins them. No atomics: equal calls give equal bits.
- **Append.** New tokens are read from `k_new`/`v_new`, never from the pool, and one program stores each of them. No
  program reads a slot that another one writes, so the append needs neither a launch of its own nor an order.

Scores are kept in base 2: `exp2` is one instruction, `exp` is two.
"""

# Triton's decorator is untyped, and its kernels are a language of their own.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NONE = tl.constexpr(float("-inf"))  # the score of a key that a row does not see

# These change from batch to batch: a kernel compiled anew for "1" or "a multiple of 16" would gain nothing.
ANY_VALUE = ["left", "right", "total_q", "num_blocks", "table_columns", "table_stride", "row_tiles", "num_splits"]


@triton.jit(do_not_specialize=ANY_VALUE)
def attention_kernel(  # noqa: PLR0912, PLR0915 - a kernel is one function
    q_ptr, k_ptr, v_ptr, k_new_ptr, v_new_ptr, out_ptr, lse_ptr,
    cu_seqlens_q_ptr, seqlens_ptr, block_table_ptr, sinks_ptr, slopes_ptr,
    score_scale, softcap, v_scale, left, right,
    total_q, num_blocks, table_columns, row_tiles, num_splits,
    q_token_stride, q_head_stride, table_stride,
    k_block_stride, k_slot_stride, k_head_stride, v_block_stride, v_slot_stride, v_head_stride,
    k_new_token_stride, k_new_head_stride, v_new_token_stride, v_new_head_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, QUERY_LEN: tl.constexpr,
    APPEND: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr, ALIBI: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_NEW: tl.constexpr,
    PAD_DIM: tl.constexpr, PAD_DIM_V: tl.constexpr, DOT_DTYPE: tl.constexpr,
):  # fmt: skip
    """Attention of TILE_ROWS rows to one split of the keys of their sequence.

    Grid: `(batch * num_splits * row_tiles * NUM_KV_HEADS,)`. `out` `(num_splits, total_q, num_heads, HEAD_DIM_V)` and
    `lse` `(num_splits, total_q, num_heads)` are contiguous. `seqlens` are the keys in the cache: without the new tokens
    when APPEND. `score_scale` brings q·k to base 2, or, with SOFTCAP, to twice the argument of the tanh; `softcap` is
    the cap in base 2. `left`, `right` is the window, a large number where unlimited. QUERY_LEN is 0 for ragged queries.
    DOT_DTYPE is that of the products' operands (fp8 is widened); sums are fp32.
    """
    # Heads vary fastest: the heads of a token are neighbours in an NHD pool, and so are their programs in time.
    # The last row tile sees the most keys when causal: it starts first.
    program = tl.program_id(0)
    kv_head = program % NUM_KV_HEADS
    row_tile = row_tiles - 1 - program // NUM_KV_HEADS % row_tiles
    split = program // (NUM_KV_HEADS * row_tiles) % num_splits
    sequence = program // (NUM_KV_HEADS * row_tiles * num_splits)

    if QUERY_LEN > 0:
        query_start = sequence * QUERY_LEN
        query_len = QUERY_LEN
    else:
        query_start = tl.load(cu_seqlens_q_ptr + sequence).to(tl.int32)
        query_len = tl.load(cu_seqlens_q_ptr + sequence + 1).to(tl.int32) - query_start
    first_row = row_tile * TILE_ROWS
    if first_row >= query_len * GROUP:
        return

    row = first_row + tl.arange(0, TILE_ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    row_exists = token < query_len
    q_row = q_ptr + (query_start + token).to(tl.int64) * q_token_stride + head * q_head_stride
    q = load_vectors(q_row, row_exists, HEAD_DIM, PAD_DIM).to(DOT_DTYPE)

    # A length that the table cannot hold is an error of the caller's: it must not become a read past the table.
    cached = tl.minimum(tl.load(seqlens_ptr + sequence).to(tl.int32), table_columns * BLOCK_SIZE)
    num_keys = cached + query_len if APPEND else cached
    table_row = block_table_ptr + sequence.to(tl.int64) * table_stride
    k_head = k_ptr + kv_head.to(tl.int64) * k_head_stride
    v_head = v_ptr + kv_head.to(tl.int64) * v_head_stride
    k_new_head = k_new_ptr + query_start.to(tl.int64) * k_new_token_stride + kv_head * k_new_head_stride
    v_new_head = v_new_ptr + query_start.to(tl.int64) * v_new_token_stride + kv_head * v_new_head_stride

    if APPEND and split == 0:
        # The tokens whose first row is in this tile, so that each is stored once.
        first = tl.cdiv(first_row, GROUP)
        end = tl.minimum(tl.cdiv(first_row + TILE_ROWS, GROUP), query_len)
        append_tokens(
            k_head, k_new_head, table_row, cached, first, end, num_blocks, table_columns,
            k_block_stride, k_slot_stride, k_new_token_stride, BLOCK_SIZE, TILE_NEW, HEAD_DIM, PAD_DIM,
        )  # fmt: skip
        append_tokens(
            v_head, v_new_head, table_row, cached, first, end, num_blocks, table_columns,
            v_block_stride, v_slot_stride, v_new_token_stride, BLOCK_SIZE, TILE_NEW, HEAD_DIM_V, PAD_DIM_V,
        )  # fmt: skip

    # The half-open range of keys that each row sees, aligned bottom-right; and that some row, and that all rows see.
    own = num_keys - query_len + token
    first_key = tl.maximum(own - left, 0)
    end_key = tl.minimum(own + right + 1, num_keys)
    first_own = num_keys - query_len + first_row // GROUP
    last_own = num_keys - query_len + tl.minimum((first_row + TILE_ROWS - 1) // GROUP, query_len - 1)
    some_first, all_first = tl.maximum(first_own - left, 0), tl.maximum(last_own - left, 0)
    some_end, all_end = tl.minimum(last_own + right + 1, num_keys), tl.minimum(first_own + right + 1, num_keys)

    # This split's share of them, in whole tiles: edge tiles, then inner ones from `inner` to `inner_end`, then edges.
    aligned = some_first // TILE_KEYS * TILE_KEYS
    share = tl.cdiv(tl.cdiv(tl.maximum(some_end - aligned, 0), TILE_KEYS), num_splits) * TILE_KEYS
    begin = aligned + split * share
    end = tl.maximum(tl.minimum(begin + share, some_end), begin)
    inner = tl.minimum(tl.maximum(tl.cdiv(all_first, TILE_KEYS) * TILE_KEYS, begin), end)
    inner_end = tl.maximum(tl.minimum(tl.minimum(all_end, cached), end) // TILE_KEYS * TILE_KEYS, inner)
    left_edges = tl.cdiv(inner - begin, TILE_KEYS)
    edges = left_edges + tl.cdiv(tl.maximum(end - inner_end, 0), TILE_KEYS)

    # A sink is a score that every row sees and that has no value: it is where the softmax of the first split starts.
    peak = tl.full([TILE_ROWS], NONE, tl.float32)
    if SINKS and split == 0:
        peak = tl.load(sinks_ptr + head, mask=row_exists, other=NONE).to(tl.float32) * LOG2E
    total = tl.where(peak > NONE, 1.0, 0.0)
    acc = tl.zeros([TILE_ROWS, PAD_DIM_V], tl.float32)

    lane = tl.arange(0, TILE_KEYS)
    for edge in tl.static_range(2):
        # Edge tiles are few: prefetching them would only cost registers that the inner loop needs.
        tiles = edges if edge else (inner_end - inner) // TILE_KEYS
        for tile in tl.range(0, tiles, num_stages=1 if edge else None):
            start = inner + tile * TILE_KEYS
            if edge:
                start = tl.where(tile < left_edges, begin, inner_end - left_edges * TILE_KEYS) + tile * TILE_KEYS
            key = start + lane
            if TILE_KEYS % BLOCK_SIZE == 0:  # the same offsets in every tile: the compiler computes them once
                offset = lane % BLOCK_SIZE
                column = start // BLOCK_SIZE + lane // BLOCK_SIZE
            else:
                offset = key % BLOCK_SIZE
                column = key // BLOCK_SIZE
            if edge:
                # What no row sees is never loaded: a masked weight is 0, but 0 * NaN is NaN.
                seen = (key >= some_first) & (key < some_end)
                block = tl.load(table_row + column, mask=seen & (key < cached), other=0)
                seen = seen & (((block >= 0) & (block < num_blocks)) | (key >= cached))
            else:
                seen = None
                block = tl.load(table_row + column)
            k_slot = slot_ptrs(k_head, block, offset, k_block_stride, k_slot_stride)
            v_slot = slot_ptrs(v_head, block, offset, v_block_stride, v_slot_stride)
            if edge and APPEND:
                new = (key - cached).to(tl.int64)
                k_slot = tl.where(key < cached, k_slot, k_new_head + new * k_new_token_stride)
                v_slot = tl.where(key < cached, v_slot, v_new_head + new * v_new_token_stride)
            k = load_vectors(k_slot, seen, HEAD_DIM, PAD_DIM).to(DOT_DTYPE)
            v = load_vectors(v_slot, seen, HEAD_DIM_V, PAD_DIM_V).to(DOT_DTYPE)

            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * score_scale
            if SOFTCAP:
                scores = softcap * (1 - 2 / (1 + tl.exp2(scores)))  # tanh(x), from exp(2x)
            if ALIBI:
                slopes = tl.load(slopes_ptr + head, mask=row_exists, other=0.0).to(tl.float32) * LOG2E
                scores -= slopes[:, None] * tl.abs(own[:, None] - key[None, :]).to(tl.float32)
            if edge:
                visible = (key[None, :] >= first_key[:, None]) & (key[None, :] < end_key[:, None])
                scores = tl.where(visible, scores, NONE)
            weights, keep, peak, total = online_softmax(scores, peak, total)
            acc = tl.dot(weights.to(DOT_DTYPE), v, acc * keep[:, None], input_precision="ieee")

    # A row that saw nothing: total is 0, the output exactly 0, the log-sum-exp -inf.
    divisor = tl.where(total > 0, total, 1.0)
    lse = tl.where(total > 0, (peak + tl.log2(divisor)) * LN2, NONE)
    out_row = (split.to(tl.int64) * total_q + query_start + token) * (NUM_KV_HEADS * GROUP) + head
    tl.store(lse_ptr + out_row, lse, mask=row_exists)
    store_vectors(out_ptr + out_row * HEAD_DIM_V, acc * (v_scale / divisor)[:, None], row_exists, HEAD_DIM_V, PAD_DIM_V)


@triton.jit
def online_softmax(scores, peak, total):
    """One step: (weights of these scores, the factor for what was summed before, the new peak, the new total)."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen no key yet has the peak -inf: shifting by 0 avoids -inf - -inf = NaN.
    shift = tl.where(new_peak > NONE, new_peak, 0.0)
    weights = tl.exp2(scores - shift[:, None])
    keep = tl.exp2(peak - shift)
    return weights, keep, new_peak, total * keep + tl.sum(weights, 1)


@triton.jit
def append_tokens(
    head_ptr, new_ptr, table_row, cached, first, end, num_blocks, table_columns, block_stride, slot_stride, new_stride,
    BLOCK_SIZE: tl.constexpr, TILE_NEW: tl.constexpr, DIM: tl.constexpr, PAD_DIM: tl.constexpr,
):  # fmt: skip
    """Copy the new tokens from `first` to `end` into their slots, bit by bit.

    A slot that the table does not have is left out: the rows of a padded CUDA graph have tables of -1.
    """
    for start in range(first, end, TILE_NEW):
        token = start + tl.arange(0, TILE_NEW)
        position = cached + token
        fits = (token < end) & (position >= 0) & (position // BLOCK_SIZE < table_columns)
        block = tl.load(table_row + position // BLOCK_SIZE, mask=fits, other=-1)
        exists = (block >= 0) & (block < num_blocks)
        values = load_vectors(new_ptr + token.to(tl.int64) * new_stride, exists, DIM, PAD_DIM)
        slot = slot_ptrs(head_ptr, block, position % BLOCK_SIZE, block_stride, slot_stride)
        store_vectors(slot, values, exists, DIM, PAD_DIM)


@triton.jit
def slot_ptrs(head_ptr, block, offset, block_stride, slot_stride):
    """Where slots begin. In 64 bits: a pool has more than 2**31 elements long before it has 2**31 blocks."""
    return (head_ptr + offset.to(tl.int64) * slot_stride) + block.to(tl.int64) * block_stride


@triton.jit
def vector_mask(exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """Mask of `(n, PAD_DIM)`: which vectors exist, None for all, and which of their elements.

    Tiles are powers of two; head dims such as 80 or 192 are not.
    """
    if DIM == PAD_DIM:
        mask = None if exists is None else exists[:, None]
    else:
        inside = (tl.arange(0, PAD_DIM) < DIM)[None, :]
        mask = inside if exists is None else exists[:, None] & inside
    return mask


@triton.jit
def load_vectors(ptrs, exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """`(n, PAD_DIM)`: the DIM elements at each pointer, zeros where nothing is to be read."""
    dims = tl.arange(0, PAD_DIM)
    mask = vector_mask(exists, DIM, PAD_DIM)
    if mask is None:
        values = tl.load(ptrs[:, None] + dims[None, :])
    else:
        values = tl.load(ptrs[:, None] + dims[None, :], mask=mask, other=0.0)
    return values


@triton.jit
def store_vectors(ptrs, values, exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """Store `(n, PAD_DIM)` values, the first DIM of each row, in the pointers' dtype."""
    dims = tl.arange(0, PAD_DIM)
    values = values.to(ptrs.dtype.element_ty)
    tl.store(ptrs[:, None] + dims[None, :], values, mask=vector_mask(exists, DIM, PAD_DIM))
