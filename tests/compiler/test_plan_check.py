"""A plan that reads memory too early or too late is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from weft.compiler.fusion import fusion
from weft.compiler.planning import arena, donation, plan, plan_check, planner
from weft.compiler.planning.plan import parts_of
from weft.compiler.program import Program
from weft.runtime.host import host


def planned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plan of a function of two products, with temporaries, and inputs that are not used afterwards."""
    monkeypatch.setattr(plan, "CHECKS", True)
    x, y = mx.random.normal((8, 8)), mx.random.normal((8, 8))
    mx.eval(x, y)
    result = mx.exp(mx.sin(x @ y) @ mx.cos(y @ x)) @ x
    program = Program()
    program.add([result.node])
    return parts_of(program.entries, [program.position(result.node)], host.target, host)


def test_a_right_plan_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(monkeypatch)
    assert found.arena
    assert found.donations == [(1, 0)]  # the last step, which writes the result, still reads x


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 7)), max_size=40))
def test_who_wrote_last_to_which_bytes(writes: list[tuple[int, int, int]]) -> None:
    nodes = [mx.zeros(1).node for _ in range(8)]
    memory = plan_check.LastWriters()
    owners: dict[int, set[int]] = {}
    for low, size, writer in writes:
        memory.write(low, low + size, nodes[writer])
        written = set(range(low, low + size))
        owners = {name: places for name, places in owners.items() if not places & written}
        owners[writer] = written
        assert [memory.holds(node) for node in nodes] == [name in owners for name in range(8)]


def test_a_kernel_that_writes_beside_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "CHECKS", True)
    monkeypatch.setattr(fusion, "whole_axes", lambda terms, shape, extents: ())
    x = mx.sqrt(mx.array([4.0]))
    with pytest.raises(AssertionError, match=r"elements 0 to 19 of .* are written, which has 1"):
        mx.eval(mx.sum(mx.pad(x, (0, 19))))


def test_temporaries_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "arrange", lambda intervals: ([0] * len(intervals), arena.arrange(intervals)[1]))
    with pytest.raises(AssertionError, match=r"overwritten|where it reads"):
        planned(monkeypatch)


def test_temporaries_beyond_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "arrange", lambda intervals: (arena.arrange(intervals)[0], 64))
    with pytest.raises(AssertionError, match="beyond"):
        planned(monkeypatch)


def test_steps_in_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    accesses = planner.Planner.accesses
    monkeypatch.setattr(planner.Planner, "accesses", lambda self: accesses(self)[::-1])
    monkeypatch.setattr(donation.Touches, "donations", lambda *arguments: [])
    with pytest.raises(AssertionError, match="before it is written"):
        planned(monkeypatch)


def test_an_input_that_is_read_after_its_memory_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation.Touches, "donations", lambda *arguments: [(0, 0)])
    with pytest.raises(AssertionError, match=r"whose memory .* has taken"):
        planned(monkeypatch)
