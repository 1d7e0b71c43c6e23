from __future__ import annotations

from pagedbench.tensors.identity import kept


class _Made:
    """Has no hash, like a layout."""

    __hash__ = None  # type: ignore[assignment]


def test_made_once_for_the_same_object_and_again_for_an_equal_one() -> None:
    calls = []

    @kept(2)
    def double(values: list[int], name: str) -> list[int]:
        calls.append(name)
        return [2 * value for value in values]

    one, equal = [1, 2], [1, 2]
    assert double(one, "a") is double(one, "a")
    assert double(equal, "a") is not double(one, "a")
    assert double(one, "b") == [2, 4], "strings count by value, not by identity"
    assert calls == ["a", "a", "b"]


def test_only_the_last_few_are_kept() -> None:
    made = [_Made() for _ in range(3)]
    calls = []

    @kept(2)
    def look(thing: _Made) -> int:
        calls.append(made.index(thing))
        return calls[-1]

    for index in (0, 1, 0, 2, 0, 1):
        assert look(made[index]) == index
    assert calls == [0, 1, 2, 1], "1 was used longest ago when 2 came"


def test_more_of_small_things_are_kept_beside_the_last_large_one() -> None:
    calls = []

    @kept(1, many=3, small=lambda values: len(values) < 2)
    def look(values: list[int]) -> int:
        calls.append(len(values))
        return len(values)

    small, large, larger = [[], [1], [2]], [1, 2], [1, 2, 3]
    for values in (*small, large, larger, *small, larger, large):
        assert look(values) == len(values)
    assert calls == [0, 1, 1, 2, 3, 2]


def test_none_is_kept_where_there_is_room_for_none() -> None:
    calls = []

    @kept(0)
    def look(values: list[int]) -> None:
        calls.append(len(values))

    one = [1]
    look(one)
    look(one)
    assert calls == [1, 1]
