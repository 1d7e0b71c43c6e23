"""Messages between parent and worker arrive whole, or not at all; a damaged worker cannot confuse the parent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from pagedbench.runner.protocol import Channel, ChannelClosed, Job, ResolvedTarget
from pagedbench.scenario.loader import load_scenarios
from pagedbench.timing.options import TimingOptions


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    one_reads, other_writes = os.pipe()
    other_reads, one_writes = os.pipe()
    yield Channel(one_reads, one_writes), Channel(other_reads, other_writes)
    for fd in (one_reads, one_writes, other_reads, other_writes):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_messages_arrive_in_order_and_whole(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    messages = [{"event": "stage", "name": "a\nb"}, {"event": "check", "result": {"x": "é" * 5000}}]
    for message in messages:
        one.send(message)
    assert [other.receive(1.0), other.receive(1.0)] == messages
    assert other.receive(0.0) is None


def test_an_end_that_is_gone_is_noticed_on_both_sides(pair: tuple[Channel, Channel]) -> None:
    one, other = pair
    other.close()
    with pytest.raises(ChannelClosed):
        one.receive(1.0)
    with pytest.raises(ChannelClosed):
        one.send({"event": "stage"})


@pytest.mark.parametrize("rubbish", [b"\x00\xff\n", b"[1]\n", b"{\n"])
def test_rubbish_counts_as_gone(rubbish: bytes) -> None:
    reads, writes = os.pipe()
    os.write(writes, rubbish)
    channel = Channel(reads, writes)
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)
    channel.close()


def test_a_job_survives_the_trip() -> None:
    job = Job(load_scenarios(["docs-decode"])[0], "torch", "decode", "cpu", "run", TimingOptions(precision=0.02))
    assert Job.from_message(job.to_message()) == job


def test_a_resolved_target_survives_the_trip() -> None:
    target = ResolvedTarget("torch", ("varlen", "decode"), available=False, reason="absent", compile_seconds=17.0)
    assert ResolvedTarget.from_message(target.to_message()) == target
