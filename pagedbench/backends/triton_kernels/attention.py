"""The attention kernel: one program attends some query rows of one sequence to one range of its keys.

One kernel serves decode and prefill, because they differ only in how many query rows there are:

- **Rows.** The query heads that share a KV head are packed with the query tokens into the rows of one matrix product
  (row = token * group + head in group), so each key is read once for all of them, and tensor cores have rows to work on.
- **Keys** come in tiles of TILE_KEYS, each key located on its own through the block table. So any block size works,
  and tiles need not agree with blocks.
- **Splits.** With few sequences the keys of each are split over several programs; each leaves a normalised partial
  output and its log-sum-exp, and `combine.py` joins them. No atomics: equal calls give equal bits.
- **Append.** New tokens are read from `k_new`/`v_new`, never from the pool, and one program stores each of them. No
  program reads a slot that another one writes, so the append needs neither a launch of its own nor an order.

Scores are kept in base 2 (`exp2` is one instruction, `exp` is two).
"""

# Triton's decorator is untyped, and its kernels are a language of their own.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def attention_kernel(
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
    PAD_DIM: tl.constexpr, PAD_DIM_V: tl.constexpr, DOT_DTYPE: tl.constexpr, INTERIOR: tl.constexpr,
):  # fmt: skip
    """Attention of TILE_ROWS rows to one split of the keys of their sequence.

    Grid: `(batch * num_splits * row_tiles * NUM_KV_HEADS,)`. `out` `(num_splits, total_q, num_heads, HEAD_DIM_V)` and
    `lse` `(num_splits, total_q, num_heads)` are contiguous. `seqlens` are the keys in the cache: without the new tokens
    when APPEND. `score_scale` brings q·k to base 2, or, with SOFTCAP, to twice the argument of the tanh; `softcap` is
    the cap in base 2. `left`, `right` is the window, a large number where unlimited. QUERY_LEN is 0 for ragged queries.
    DOT_DTYPE is that of the products' operands (fp8 is widened, the sums are fp32).
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
    if row_tile * TILE_ROWS >= query_len * GROUP:
        return

    rows = row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
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
        first_token = tl.cdiv(row_tile * TILE_ROWS, GROUP)
        end_token = tl.minimum(tl.cdiv((row_tile + 1) * TILE_ROWS, GROUP), query_len)
        for start in range(first_token, end_token, TILE_NEW):
            new = start + tl.arange(0, TILE_NEW)
            position = cached + new
            fits = (new < end_token) & (position // BLOCK_SIZE < table_columns)
            block = tl.load(table_row + position // BLOCK_SIZE, mask=fits, other=-1)
            allocated = (block >= 0) & (block < num_blocks)
            k_slot = slot_ptrs(k_head, block, position % BLOCK_SIZE, k_block_stride, k_slot_stride)
            v_slot = slot_ptrs(v_head, block, position % BLOCK_SIZE, v_block_stride, v_slot_stride)
            copy_vectors(k_new_head + new.to(tl.int64) * k_new_token_stride, k_slot, allocated, HEAD_DIM, PAD_DIM)
            copy_vectors(v_new_head + new.to(tl.int64) * v_new_token_stride, v_slot, allocated, HEAD_DIM_V, PAD_DIM_V)

    # The half-open range of keys that each row sees, aligned bottom-right, and that any row of the tile sees.
    own = num_keys - query_len + token
    first_key = tl.maximum(own - left, 0)
    end_key = tl.minimum(own + right + 1, num_keys)
    first_own = num_keys - query_len + row_tile * TILE_ROWS // GROUP
    last_own = num_keys - query_len + tl.minimum((row_tile * TILE_ROWS + TILE_ROWS - 1) // GROUP, query_len - 1)
    tile_first = tl.maximum(first_own - left, 0)
    tile_end = tl.maximum(tl.minimum(last_own + right + 1, num_keys), tile_first)

    aligned_first = tile_first // TILE_KEYS * TILE_KEYS
    span = tl.cdiv(tl.cdiv(tile_end - aligned_first, TILE_KEYS), num_splits) * TILE_KEYS
    begin = aligned_first + split * span
    end = tl.minimum(begin + span, tile_end)
    # Before `edge`, every row sees every key of a tile, so scores need no mask. A window has its edge on the left too:
    # its tiles are few, and all of them are masked.
    edge = begin
    if INTERIOR and last_own - left <= begin:
        shared_end = tl.minimum(first_own + right + 1, num_keys) // TILE_KEYS * TILE_KEYS
        edge = tl.maximum(tl.minimum(shared_end, end), begin)

    # A sink is a score that every row sees and that has no value: it is where the softmax of the first split starts.
    peak = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    if SINKS and split == 0:
        peak = tl.load(sinks_ptr + head, mask=row_exists, other=float("-inf")).to(tl.float32) * LOG2E
    total = tl.where(peak > float("-inf"), 1.0, 0.0)
    acc = tl.zeros([TILE_ROWS, PAD_DIM_V], tl.float32)

    for masked in tl.static_range(0 if INTERIOR else 1, 2):
        for start in range(edge if masked else begin, end if masked else edge, TILE_KEYS):
            key = start + tl.arange(0, TILE_KEYS)
            # What no row sees is never loaded: a masked weight is 0, but 0 * NaN is NaN.
            seen = (key >= tile_first) & (key < tile_end)
            in_pool = seen & (key < cached)
            block = tl.load(table_row + key // BLOCK_SIZE, mask=in_pool, other=0)
            seen = seen & (block >= 0) & ((block < num_blocks) | (key >= cached))
            k_slot = slot_ptrs(k_head, block, key % BLOCK_SIZE, k_block_stride, k_slot_stride)
            v_slot = slot_ptrs(v_head, block, key % BLOCK_SIZE, v_block_stride, v_slot_stride)
            if APPEND:
                new = (key - cached).to(tl.int64)
                k_slot = tl.where(key < cached, k_slot, k_new_head + new * k_new_token_stride)
                v_slot = tl.where(key < cached, v_slot, v_new_head + new * v_new_token_stride)

            k = load_vectors(k_slot, seen, HEAD_DIM, PAD_DIM).to(DOT_DTYPE)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * score_scale
            if SOFTCAP:
                scores = softcap * (1 - 2 / (1 + tl.exp2(scores)))  # tanh(x), from exp(2x)
            if ALIBI:
                slopes = tl.load(slopes_ptr + head, mask=row_exists, other=0.0).to(tl.float32) * LOG2E
                scores -= slopes[:, None] * tl.abs(own[:, None] - key[None, :]).to(tl.float32)
            if masked:
                visible = (key[None, :] >= first_key[:, None]) & (key[None, :] < end_key[:, None])
                scores = tl.where(visible, scores, float("-inf"))

            # Online softmax. A row that has seen no key yet has peak -inf: shifting by 0 avoids -inf - -inf = NaN.
            new_peak = tl.maximum(peak, tl.max(scores, 1))
            shift = tl.where(new_peak > float("-inf"), new_peak, 0.0)
            weights = tl.exp2(scores - shift[:, None])
            keep = tl.exp2(peak - shift)
            total = total * keep + tl.sum(weights, 1)
            peak = new_peak
            v = load_vectors(v_slot, seen, HEAD_DIM_V, PAD_DIM_V).to(DOT_DTYPE)
            acc = tl.dot(weights.to(DOT_DTYPE), v, acc * keep[:, None], input_precision="ieee")

    # A row that saw nothing: total is 0, the output exactly 0, the log-sum-exp -inf.
    saw_any = total > 0
    divisor = tl.where(saw_any, total, 1.0)
    lse = tl.where(saw_any, (peak + tl.log2(divisor)) * LN2, float("-inf"))
    row = (split.to(tl.int64) * total_q + query_start + token) * (NUM_KV_HEADS * GROUP) + head
    tl.store(lse_ptr + row, lse, mask=row_exists)
    store_vectors(out_ptr + row * HEAD_DIM_V, acc * (v_scale / divisor)[:, None], row_exists, HEAD_DIM_V, PAD_DIM_V)


@triton.jit
def slot_ptrs(head_ptr, block, offset, block_stride, slot_stride):
    """Where slots begin. In 64 bits: a pool has more than 2**31 elements long before it has 2**31 blocks."""
    return head_ptr + block.to(tl.int64) * block_stride + offset.to(tl.int64) * slot_stride


@triton.jit
def vector_mask(exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """`(n, PAD_DIM)` mask: tiles are powers of two, head dims such as 80 or 192 are not."""
    mask = exists[:, None]
    if DIM < PAD_DIM:
        mask = mask & (tl.arange(0, PAD_DIM) < DIM)[None, :]
    return mask


@triton.jit
def load_vectors(ptrs, exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """`(n, PAD_DIM)`: the DIM elements at each pointer, zeros where nothing is to be read."""
    dims = tl.arange(0, PAD_DIM)
    return tl.load(ptrs[:, None] + dims[None, :], mask=vector_mask(exists, DIM, PAD_DIM), other=0.0)


@triton.jit
def store_vectors(ptrs, values, exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """Store `(n, PAD_DIM)` values, the first DIM of each row, in the pointers' dtype."""
    dims = tl.arange(0, PAD_DIM)
    values = values.to(ptrs.dtype.element_ty)
    tl.store(ptrs[:, None] + dims[None, :], values, mask=vector_mask(exists, DIM, PAD_DIM))


@triton.jit
def copy_vectors(source, target, exists, DIM: tl.constexpr, PAD_DIM: tl.constexpr):
    """Copy DIM elements from each source pointer to its target, bit by bit."""
    store_vectors(target, load_vectors(source, exists, DIM, PAD_DIM), exists, DIM, PAD_DIM)
