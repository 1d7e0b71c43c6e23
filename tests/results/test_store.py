"""Records are on the disk when `append` returns, files are whole or absent, and a torn line costs one record."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pagedbench.errors import NotWhole, RecordsLost, UsageError
from pagedbench.results.record import CellRecord
from pagedbench.results.store import RecordStore, partial_path, read_records, read_unfinished, write_text
from pagedbench.words import Verdict


def record(scenario: str) -> CellRecord:
    return CellRecord(scenario, "torch", "decode", "cpu", Verdict.PASS)


def names(records: list[CellRecord]) -> list[str]:
    return [r.scenario for r in records]


def test_a_finished_run_has_the_name_asked_for_and_nothing_else_lies_around(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "records.jsonl"
    with RecordStore(file) as store:
        store.append(record("a"))
        assert not file.exists()
        store.append(record("b"))
    assert names(read_records(file)) == ["a", "b"]
    assert os.listdir(file.parent) == ["records.jsonl"]


def test_an_interrupted_run_keeps_what_it_had(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"

    def interrupted_run() -> None:
        with RecordStore(file) as store:
            store.append(record("a"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_run()
    assert names(read_records(file)) == ["a"]


def test_a_torn_last_line_is_refused_and_may_be_gone_on_from(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    whole = record("a").to_json() + "\n"
    file.write_text(whole + whole[:40])
    with pytest.raises(NotWhole, match=r"records\.jsonl: its last record is cut off"):
        read_records(file)
    assert names(read_unfinished(file)) == ["a"]


def test_a_last_line_without_an_end_is_a_record_where_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(record("a").to_json() + "\n" + record("b").to_json())
    assert names(read_records(file)) == names(read_unfinished(file)) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "\n\n", record("a").to_json()[:40]])
def test_a_file_without_a_whole_record_is_refused_and_may_be_begun(text: str, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(text)
    with pytest.raises(NotWhole, match="holds no whole record"):
        read_records(file)
    assert read_unfinished(file) == []


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    whole = record("a").to_json() + "\n"
    file.write_text(whole + "{}\n" + whole)
    with pytest.raises(UsageError, match=r"records\.jsonl:2: not a record"):
        read_records(file)


def test_records_are_read_from_gzip_and_a_broken_one_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.gz"
    packed = gzip.compress((record("a").to_json() + "\n" + record("b").to_json() + "\n").encode())
    file.write_bytes(packed)
    assert names(read_records(file)) == ["a", "b"]
    for broken in (packed[:-20], packed[:40] + b"\0" * 30):
        file.write_bytes(broken)
        with pytest.raises(UsageError, match="cannot read"):
            read_records(file)


def test_records_that_another_program_copied_are_read(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + (record("a").to_json() + "\r\n" + record("b").to_json() + "\r\n").encode())
    assert names(read_records(file)) == ["a", "b"]


def test_a_name_that_ends_in_gz_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.gz"
    with RecordStore(file) as store:
        store.append(record("a"))
    assert names(read_records(file)) == names(read_unfinished(file)) == ["a"]


def test_what_a_killed_run_left_is_named_where_the_file_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    partial_path(file).write_text(record("a").to_json() + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_records(file)
    assert "records.jsonl.partial" in refused.value.hint
    assert "--resume" in refused.value.hint


def test_kill_9_loses_nothing_that_was_appended_and_the_old_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(record("old").to_json() + "\n")
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from pagedbench.results.record import CellRecord
        from pagedbench.results.store import RecordStore
        from pagedbench.words import Verdict
        with RecordStore(Path(sys.argv[1])) as store:
            store.append(CellRecord("a", "torch", "decode", "cpu", Verdict.PASS))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert names(read_records(file)) == ["old"]
    assert names(read_unfinished(file)) == ["a"]


@pytest.mark.parametrize("kept", [(), ("a",)])
def test_a_run_that_fails_before_its_first_record_leaves_earlier_ones(kept: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(record("old").to_json() + "\n")
    partial_path(file).write_text(record("a").to_json() + "\n")
    with pytest.raises(UsageError, match="no such scenario"), RecordStore(file, [record(name) for name in kept]):
        raise UsageError("no such scenario")
    assert (names(read_records(file)), names(read_unfinished(file))) == (["old"], ["a"])


def test_a_run_without_records_leaves_an_empty_file(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "records.jsonl"):
        pass
    assert (tmp_path / "records.jsonl").read_text() == ""


def test_what_is_no_file_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    """As root a rename would put a file in the place of /dev/stdout, for every program on the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with RecordStore(pipe) as store:
            store.append(record("a"))
        write_text(pipe, "report")
        told = os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
    assert told == record("a").to_json() + "\nreport"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_the_output_of_the_program_itself_is_added_to_where_it_goes_to_a_file(tmp_path: Path) -> None:
    script = "import pathlib, sys; from pagedbench.results.store import write_text\n"
    script += "print('table', flush=True); write_text(pathlib.Path(sys.argv[1]), 'report\\n'); print('end')"
    file = tmp_path / "out.txt"
    with file.open("w") as stream:
        subprocess.run([sys.executable, "-c", script, str(file)], stdout=stream, check=True)
    assert file.read_text() == "table\nreport\nend\n"


def test_a_file_that_another_run_is_writing_is_refused(tmp_path: Path) -> None:
    """Both would write to one `.partial`: the first to end took the other's records with it."""
    file = tmp_path / "records.jsonl"
    with RecordStore(file) as late:  # begins before there is anything to see
        with RecordStore(file) as first:
            first.append(record("first"))
            with pytest.raises(UsageError, match="another run is writing"), RecordStore(file):
                pass
            with pytest.raises(UsageError, match="another run is writing"):
                late.append(record("late"))
        assert [r.scenario for r in read_records(file)] == ["first"]
        late.append(record("late"))
    assert [r.scenario for r in read_records(file)] == ["late"]


def test_of_two_runs_that_begin_at_one_moment_the_later_loses_no_record_to_the_earlier(tmp_path: Path) -> None:
    """Both looked before either wrote; the one whose `.partial` was replaced must not give the other's its name."""
    file = tmp_path / "records.jsonl"
    first = RecordStore(file)
    with RecordStore(file) as second:
        first.append(record("first"))
        partial_path(file).unlink()  # as the other's, which it gives the same name, would do
        second.append(record("second"))
        with pytest.raises(RecordsLost, match="replaced or removed meanwhile"):
            first.append(record("first again"))
        with pytest.raises(RecordsLost, match="replaced or removed meanwhile"):
            first.__exit__(None, None, None)
    assert [r.scenario for r in read_records(file)] == ["second"]


def test_a_disk_that_fills_up_ends_the_run_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*anything: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "records.jsonl"
    with RecordStore(file) as store:
        store.append(record("a"))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RecordsLost, match=r"records\.jsonl: No space left"):
            store.append(record("b"))
    assert names(read_records(file)) == ["a"]


def test_resuming_puts_the_kept_records_first(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    partial_path(file).write_text(record("a").to_json() + "\n")
    with RecordStore(file, kept=read_unfinished(file)) as store:
        store.append(record("b"))
    assert names(read_records(file)) == ["a", "b"]
    assert not partial_path(file).exists()


def test_write_text_replaces_at_once_and_explains_what_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    write_text(file, "one")
    write_text(file, "two")
    assert file.read_text() == "two"
    assert os.listdir(tmp_path) == ["report.md"]
    with pytest.raises(UsageError, match="cannot write") as refused:
        write_text(file / "below a file", "x")
    assert refused.value.hint == "name a file where you may write, with room left"


def test_a_link_stays_and_what_it_stands_for_is_written(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    link, held = tmp_path / "r.jsonl", tmp_path / "other" / "held.jsonl"
    link.symlink_to(held)
    with RecordStore(link) as store:
        store.append(record("a"))
        assert partial_path(link) == partial_path(held)
        assert partial_path(held).exists()
    assert link.is_symlink()
    assert [r.scenario for r in read_records(held)] == ["a"]
    write_text(link, "text")
    assert link.is_symlink()
    assert held.read_text() == "text"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["held.jsonl", "other", "r.jsonl"]


def test_write_text_writes_what_no_encoding_holds(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", "half \ud800")
    assert (tmp_path / "report.md").read_text() == "half ?"


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read") as refused:
        read_records(tmp_path / "absent.jsonl")
    assert "made by --json" in refused.value.hint
