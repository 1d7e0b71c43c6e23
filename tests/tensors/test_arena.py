from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedbench.tensors.arena import ALIGNMENT, Arena, Piece, plan_arena

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn]


def test_a_guard_reads_as_nan_in_every_floating_dtype_and_as_no_block() -> None:
    arena = Arena(plan_arena([]), "cpu")
    arena.memory = torch.full((8,), 0x7FFF, dtype=torch.int16)
    for dtype in FLOATS:
        assert arena.memory.view(dtype).float().isnan().all()
    assert (arena.memory.view(torch.int32) == 0x7FFF7FFF).all()


@given(
    st.lists(
        st.tuples(st.sampled_from([*FLOATS, torch.int32, torch.int64]), st.integers(0, 999), st.integers(0, 999)),
        max_size=6,
    )
)
def test_pieces_never_touch(wanted: list[tuple[torch.dtype, int, int]]) -> None:
    plan = plan_arena(Piece(str(i), dtype, count, guard) for i, (dtype, count, guard) in enumerate(wanted))
    end = 0
    for i, (_, _, guard) in enumerate(wanted):
        start = plan.offsets[str(i)]
        assert start % ALIGNMENT == 0
        assert start - end >= guard
        if i:
            assert start - end >= wanted[i - 1][2]
        end = start + plan.pieces[str(i)].nbytes
    assert plan.total >= end + (wanted[-1][2] if wanted else 0)


def test_a_piece_is_written_without_touching_its_guards() -> None:
    plan = plan_arena([Piece("a", torch.bfloat16, 5, 64), Piece("b", torch.float8_e4m3fn, 3, 64)])
    arena = Arena(plan, "cpu")
    arena.flat("a").fill_(1.0)
    arena.flat("b").view(torch.uint8).fill_(0)
    written = (arena.memory != 0x7FFF).nonzero().flatten() * 2
    # 5 bf16; 3 bytes of fp8 touch two units of two bytes.
    expected = [plan.offsets["a"] + 2 * i for i in range(5)] + [plan.offsets["b"], plan.offsets["b"] + 2]
    assert written.tolist() == expected


def test_changes_are_found_and_named() -> None:
    plan = plan_arena([Piece("pool", torch.float32, 100, 512), Piece("table", torch.int32, 7, 512)])
    right, wrong = Arena(plan, "cpu"), Arena(plan, "cpu")
    assert right.equals(wrong)
    wrong.flat("table")[3] = 1
    wrong.memory[0] = 1
    assert not right.equals(wrong)
    assert right.changed_bytes(wrong) == [("the guard band between the start and pool", 0, 1), ("table", 12, 2)]


def test_writing_past_the_end_of_a_piece_is_writing_into_a_guard() -> None:
    plan = plan_arena([Piece("pool", torch.float32, 100, 512)])
    right, wrong = Arena(plan, "cpu"), Arena(plan, "cpu")
    past_the_end = torch.as_strided(wrong.flat("pool"), (1,), (1,), wrong.flat("pool").storage_offset() + 100)
    past_the_end.fill_(0.0)
    assert wrong.changed_bytes(right) == [("the guard band after pool", 0, 2)]
