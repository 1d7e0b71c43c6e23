"""Faults in which slots are read: keys, blocks, splits and table entries lost, doubled or taken from elsewhere."""

from __future__ import annotations

from dataclasses import replace

import torch

from pagedbench.faults.fault import Change, Fault
from pagedbench.faults.program import NO_SLOT, AttentionProgram, followed, visible_range

SPLITS = 4
LONG = 4096


def middle_key(program: AttentionProgram) -> torch.Tensor:
    """`(batch,)` a key in the middle of what the last query token of each sequence sees; −1 where it sees none."""
    facts = program.facts
    middle = torch.full((facts.batch,), -1)
    for sequence in range(facts.batch):
        rows = (facts.row_sequence == sequence).nonzero()[:, 0]
        if len(rows) and program.last[rows[-1]] > program.first[rows[-1]]:
            middle[sequence] = (program.first[rows[-1]] + program.last[rows[-1]]) // 2
    return middle


def middle_block(program: AttentionProgram) -> torch.Tensor:
    """`(batch, positions)` bool: the positions of the block that holds the middle key."""
    size = program.facts.block_size
    key = middle_key(program)[:, None]
    return (program.position // size == key // size) & (key >= 0) & program.inside


def split_of(program: AttentionProgram) -> torch.Tensor:
    """`(batch, positions)` which of the call's equal ranges of whole blocks a key belongs to, or of keys where it asks
    for more splits than there are blocks; of at most four ranges where it asks for no number, or for one."""
    facts = program.facts
    wanted = facts.spec.num_splits
    if wanted <= 1:
        length = -(-facts.blocks // SPLITS) * facts.block_size
    else:
        blocks = -(-facts.blocks // wanted) * facts.block_size
        length = torch.where(facts.blocks < wanted, -(-facts.total // wanted), blocks)
    return program.position // length.clamp(min=1)[:, None]


def _weigh(program: AttentionProgram, where: torch.Tensor, weight: float) -> AttentionProgram:
    return program.replace(weight=program.weight.masked_fill(where, weight))


def _reslot(program: AttentionProgram, where: torch.Tensor, slots: torch.Tensor) -> AttentionProgram:
    return program.replace(
        k_slots=torch.where(where, slots, program.k_slots), v_slots=torch.where(where, slots, program.v_slots)
    )


def _next_block(program: AttentionProgram) -> torch.Tensor:
    facts = program.facts
    shifted = (program.k_slots + facts.block_size) % max(facts.num_slots, 1)
    return torch.where(program.k_slots == NO_SLOT, NO_SLOT, shifted)


def _other_sequence(program: AttentionProgram) -> torch.Tensor:
    """`(batch, positions)` the slots of the next sequence that has keys, at the same place (modulo its length)."""
    facts = program.facts
    slots = program.k_slots.clone()
    filled = [b for b in range(facts.batch) if facts.total[b] > 0]
    for b in filled:
        other = next((o for o in [*filled, *filled] if o > b), filled[0])
        slots[b] = program.k_slots[other, program.position[0] % facts.total[other]]
    return slots


def last_key_missed(program: AttentionProgram) -> AttentionProgram:
    """Drop each sequence's last key."""
    return _weigh(program, program.position == program.facts.total[:, None] - 1, 0.0)


def new_block_missed(program: AttentionProgram) -> AttentionProgram:
    """Count blocks by the keys before the append: what lies in a block that a new token opens is dropped."""
    facts = program.facts
    if facts.table is None or program.writes is None:
        return program
    blocks = -(-facts.cached // facts.block_size)
    return _weigh(program, program.position >= (blocks * facts.block_size)[:, None], 0.0)


def one_key_too_many(program: AttentionProgram) -> AttentionProgram:
    """Rows that see the last key see the slot after it as well."""
    end = program.facts.total[program.facts.row_sequence]
    more = (program.last == end) & (program.last > program.first)
    slots = followed(program.k_slots, program.facts.block_size)
    return program.replace(last=program.last + more.long(), k_slots=slots, v_slots=slots)


def first_key_missed(program: AttentionProgram) -> AttentionProgram:
    """Drop each sequence's first key."""
    return _weigh(program, (program.position == 0) & program.inside, 0.0)


def key_twice(program: AttentionProgram) -> AttentionProgram:
    """Count the middle key twice."""
    return _weigh(program, program.position == middle_key(program)[:, None], 2.0)


def block_skipped(program: AttentionProgram) -> AttentionProgram:
    """Drop the middle block."""
    return _weigh(program, middle_block(program), 0.0)


def block_doubled(program: AttentionProgram) -> AttentionProgram:
    """Count the middle block twice."""
    return _weigh(program, middle_block(program), 2.0)


def block_wrong(program: AttentionProgram) -> AttentionProgram:
    """Take the middle block from the next physical block."""
    return _reslot(program, middle_block(program), _next_block(program))


def block_of_another_sequence(program: AttentionProgram) -> AttentionProgram:
    """Take the middle block from another sequence."""
    return _reslot(program, middle_block(program), _other_sequence(program))


def table_row_of_another_sequence(program: AttentionProgram) -> AttentionProgram:
    """Take every block from another sequence."""
    return _reslot(program, program.inside, _other_sequence(program))


def _block_id_bits(bits: int) -> Change:
    """Block ids are cut to so many bits."""

    def change(program: AttentionProgram) -> AttentionProgram:
        size = program.facts.block_size
        if program.facts.table is None:
            return program
        cut = (program.k_slots // size % (1 << bits)) * size + program.k_slots % size
        return _reslot(program, program.k_slots != NO_SLOT, cut)

    return change


def slot_16_bits(program: AttentionProgram) -> AttentionProgram:
    """What is cut to 16 bits is `block_id * block_size + offset`."""
    if program.facts.table is None:
        return program
    return _reslot(program, program.k_slots != NO_SLOT, program.k_slots % 65536)


def block_id_offset(program: AttentionProgram) -> AttentionProgram:
    """Every block is taken one further in the pool."""
    return _reslot(program, program.inside, _next_block(program))


def block_id_minus_one(program: AttentionProgram) -> AttentionProgram:
    """Every block is taken one earlier in the pool: block ids are counted from 1."""
    facts = program.facts
    return _reslot(program, program.inside, (program.k_slots - facts.block_size) % max(facts.num_slots, 1))


def block_tail_dropped(program: AttentionProgram) -> AttentionProgram:
    """Whole tiles of a power of two only: the rest of every block is dropped."""
    size = program.facts.block_size
    tile = 1 << (size.bit_length() - 1)
    return _weigh(program, (program.position % size >= tile) & program.inside, 0.0)


def middle_dropped(program: AttentionProgram) -> AttentionProgram:
    """Drop the keys from 4,096 to the last block."""
    facts = program.facts
    last_block = ((facts.total - 1).clamp(min=0) // facts.block_size * facts.block_size)[:, None]
    return _weigh(program, (program.position >= LONG) & (program.position < last_block), 0.0)


def split_lost(program: AttentionProgram) -> AttentionProgram:
    """Drop the second split."""
    return _weigh(program, (split_of(program) == 1) & program.inside, 0.0)


def split_twice(program: AttentionProgram) -> AttentionProgram:
    """Count the second split twice."""
    return _weigh(program, (split_of(program) == 1) & program.inside, 2.0)


def longest_length(program: AttentionProgram) -> AttentionProgram:
    """Every sequence is taken to be as long as the longest."""
    facts = program.facts
    longest = torch.full_like(facts.total, int(facts.total.max()) if facts.batch else 0)
    first, last = visible_range(replace(facts, total=longest), facts.spec.causal, facts.spec.window_size)
    slots = followed(program.k_slots, facts.block_size)
    return program.replace(first=first, last=last, k_slots=slots, v_slots=slots)


def table_row_counted_without_empty_queries(program: AttentionProgram) -> AttentionProgram:
    """The block table's row is counted among the sequences that have query tokens."""
    facts = program.facts
    if facts.table is None:
        return program
    asked = (facts.query_lens > 0).long()
    slots = followed(program.k_slots[asked.cumsum(0) - asked], facts.block_size)
    return _reslot(program, program.inside & (asked > 0)[:, None], slots)


def k_one_slot_late(program: AttentionProgram) -> AttentionProgram:
    """K of the middle block is read one slot late, V is right."""
    late = (program.k_slots + 1) % max(program.facts.num_slots, 1)
    return program.replace(k_slots=torch.where(middle_block(program), late, program.k_slots))


def v_one_slot_late(program: AttentionProgram) -> AttentionProgram:
    """V of the middle block is read one slot late, K is right."""
    late = (program.v_slots + 1) % max(program.facts.num_slots, 1)
    return program.replace(v_slots=torch.where(middle_block(program), late, program.v_slots))


def v_of_another_sequence(program: AttentionProgram) -> AttentionProgram:
    """V of the middle block comes from another sequence, K is right."""
    return program.replace(v_slots=torch.where(middle_block(program), _other_sequence(program), program.v_slots))


def v_from_the_k_pool(program: AttentionProgram) -> AttentionProgram:
    """V is read where K lies."""
    spec = program.facts.spec
    return program.replace(v_from_k=spec.head_dim == spec.head_dim_v)


def v_channel_wrong(program: AttentionProgram) -> AttentionProgram:
    """The first channel of V is its neighbour's."""
    order = torch.arange(program.facts.spec.head_dim_v)
    order[0] = min(1, len(order) - 1)
    return program.replace(v_order=order)


FAULTS = (
    Fault("last-key-missed", "the last key is missed (cache_seqlens − 1)", "W", last_key_missed),
    Fault(
        "new-block-missed",
        "a block that a new token opens is not read (blocks counted before the append)",
        "W",
        new_block_missed,
        "an append to a sequence whose blocks are full",
    ),
    Fault(
        "one-key-too-many",
        "one key too many is read (cache_seqlens + 1)",
        "W",
        one_key_too_many,
        report="huggingface/transformers #39408",
    ),
    Fault("first-key-missed", "the first key is missed", "W", first_key_missed, "no window that hides it"),
    Fault("key-twice", "one key is counted twice", "W", key_twice),
    Fault("block-skipped", "a block in the middle is skipped", "W", block_skipped),
    Fault("block-doubled", "a block in the middle is counted twice", "W", block_doubled),
    Fault("block-wrong", "a block is read one physical block further", "W", block_wrong, "two blocks in the pool"),
    Fault(
        "block-of-another-sequence",
        "a block is taken from another sequence",
        "W",
        block_of_another_sequence,
        "two sequences with keys of their own",
    ),
    Fault(
        "table-row-of-another-sequence",
        "the block table's row of another sequence is used",
        "W",
        table_row_of_another_sequence,
        "two sequences with keys of their own",
    ),
    Fault(
        "table-row-without-empty-queries",
        "sequences without query tokens are not counted in the row of the block table",
        "W",
        table_row_counted_without_empty_queries,
        "a sequence without query tokens before one that has some",
    ),
    Fault(
        "block-id-16-bits",
        "block ids are cut to 16 bits",
        "W",
        _block_id_bits(16),
        "a block id of 65,536 or more",
        "ROCm/aiter #3062",
    ),
    Fault("block-id-15-bits", "block ids are cut to 15 bits", "W", _block_id_bits(15), "a block id of 32,768 or more"),
    Fault(
        "slot-16-bits",
        "slots (block_id * block_size + offset) are cut to 16 bits",
        "W",
        slot_16_bits,
        "a slot of 65,536 or more",
    ),
    Fault("block-id-offset", "every block is read one physical block further", "W", block_id_offset),
    Fault("block-id-minus-one", "every block is read one physical block earlier", "W", block_id_minus_one),
    Fault(
        "block-tail-dropped",
        "the part of a block past its last whole tile is dropped",
        "W",
        block_tail_dropped,
        "a block size that is no power of two",
        "tile-ai/TileOPs #1787",
    ),
    Fault(
        "middle-dropped",
        "the keys from 4,096 to the last block are dropped",
        "W",
        middle_dropped,
        "more than 4,096 keys and a block",
    ),
    Fault("split-lost", "one split of the keys is lost", "W", split_lost, "two blocks a sequence"),
    Fault("split-twice", "one split of the keys is counted twice", "W", split_twice, "two blocks a sequence"),
    Fault(
        "longest-length",
        "every sequence is taken to be as long as the longest",
        "W",
        longest_length,
        "sequences of different lengths",
    ),
    Fault("k-one-slot-late", "K of a block is read one slot late (V is right)", "W", k_one_slot_late),
    Fault("v-one-slot-late", "V of a block is read one slot late (K is right)", "W", v_one_slot_late),
    Fault(
        "v-of-another-sequence",
        "V of a block is taken from another sequence (K is right)",
        "W",
        v_of_another_sequence,
        "two sequences with keys of their own",
    ),
    Fault(
        "v-from-the-k-pool",
        "V is read from the K pool",
        "W",
        v_from_the_k_pool,
        "K and V of one head dim",
    ),
    Fault("v-channel-wrong", "one channel of V is its neighbour's", "W", v_channel_wrong),
)
