"""Where records lie: JSON Lines, one cell a line, appended as each cell is done.

A run writes to `FILE.partial` and gives it the name `FILE` when it ends, also when it is interrupted: a file with the
right name is never half a run by accident, and what it replaces stays whole until then. Each line is one `write` and
one `fsync`, so that `kill -9` loses at most the cell in flight; `--resume` judges a cell whose line is torn again.

What is no regular file (a pipe, a device, the program's own output) is written into: a rename would put a file in its
place, as root even in that of `/dev/stdout`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from pagedbench.errors import CannotWrite, NotWhole, RecordsLost, UsageError
from pagedbench.results.record import CellRecord

CUT_OFF = "its last record is cut off"
_MADE_BY = "give a file made by --json, run or check"
_GZIP = b"\x1f\x8b"


def partial_path(file: Path) -> Path:
    """The name that `file` has while a run is still writing it."""
    file = behind_links(file)
    return file.with_name(file.name + ".partial")


def behind_links(file: Path) -> Path:
    """The file that a symbolic link stands for: a rename must take that one's place, not the link's."""
    return Path(os.path.realpath(file)) if file.is_symlink() else file


def is_record_file(name: str) -> bool:
    """Whether a word on the command line is a file of records and no scenario."""
    return name.endswith((".jsonl", ".jsonl.gz", ".jsonl.partial"))


def read_records(file: Path) -> list[CellRecord]:
    """All records of a JSON Lines file, in order; of one in gzip, too.

    Raises `NotWhole` when it has no record or the last one is cut off: who judges by the others would not know what is
    missing; `UsageError` when it cannot be read, or a whole line is no record (with its number).
    """
    records, cut = read_whole(file)
    if cut:
        raise NotWhole(f"{file}: {CUT_OFF}", "make the records again, or take the line out of the file")
    return records


def read_whole(file: Path) -> tuple[list[CellRecord], bool]:
    """The whole records of a file, and whether its last one is cut off. Else raises as `read_records` does."""
    records, cut = _parse(file, read_text(file))
    if not records:
        raise NotWhole(f"{file} holds no whole record", _MADE_BY)
    return records, cut


def read_text(file: Path) -> str:
    """What a file of records holds, unpacked. Raises `UsageError`, which names what a killed run left under that name.

    What is packed is told by its first bytes: `--json NAME.gz` writes plain lines, since a run appends. Other programs
    put a byte order mark in front of lines that they copy.
    """
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig", errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        left = partial_path(file)
        interrupted = f"an interrupted run left {left}: read that, or go on from it with --resume"
        hint = interrupted if left.exists() else _MADE_BY
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", hint) from error


def _parse(file: Path, text: str) -> tuple[list[CellRecord], bool]:
    """The records of whole lines, and whether something is left that is none: a line that was torn has no end, though
    not all that has no end was torn."""
    *lines, rest = text.split("\n")
    records = [_from_line(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    with contextlib.suppress(UsageError):
        return [*records, CellRecord.from_json(rest)], False
    return records, bool(rest.strip())


def _from_line(line: str, place: str) -> CellRecord:
    try:
        return CellRecord.from_json(line)
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from error


def read_unfinished(file: Path) -> list[CellRecord]:
    """What an earlier, perhaps killed, run left: the records of `FILE.partial` if it exists, else those of `FILE`. One
    that is cut off is judged again."""
    for candidate in (partial_path(file), file):
        if candidate.is_file():
            return _parse(candidate, read_text(candidate))[0]
    return []


def is_stream(file: Path) -> bool:
    """Whether `file` is there, and no file that another may take the place of."""
    return file.exists() and (not file.is_file() or _own_output(file) is not None)


def _own_output(file: Path) -> int | None:
    """The descriptor of this program's own output where that goes to `file`; None: it does not."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
    return None


def _open_stream(file: Path) -> int:
    """A descriptor to write to. That of the program's own output shares its place: what follows comes after it."""
    own = _own_output(file)
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC) if own is None else os.dup(own)


def write_text(file: Path, text: str) -> None:
    """Write a whole file so that nobody ever sees half of it. Raises `CannotWrite`."""
    with _refusals_told(file):
        if is_stream(file):
            with os.fdopen(_open_stream(file), "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            return
        with whole_file(file) as name, open(name, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[str]:
    """The name of a temporary file beside `file`, which takes its place at the end; not so after an exception. Raises
    `CannotWrite` for those of the system."""
    with _refusals_told(file):
        place = behind_links(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        os.close(handle)
        try:
            yield name
            os.chmod(name, 0o666 & ~_umask())  # a temporary file is its owner's alone
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise


@contextlib.contextmanager
def _refusals_told(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(file, error.strerror) from error


def _umask() -> int:
    """The process's umask; reading it needs setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Record(Protocol):
    """What a line of a file holds."""

    def to_json(self) -> str:
        """The line."""


class RecordStore:
    """Appends records to a file. Used as a context manager; leaving it, for whatever reason, gives the file its name.

    `kept` are records of an earlier run that this one goes on from (`--resume`): they come first in the new file.
    """

    def __init__(self, file: Path, kept: Iterable[CellRecord] = ()) -> None:
        self.file = file
        self._kept = tuple(kept)
        self._fd = -1
        self._streams = False

    def __enter__(self) -> RecordStore:
        """Raises `UsageError` where no file can be made, or another run is writing it: before a cell is judged."""
        if not is_stream(self.file):
            _refuse_second_writer(self.file)
        require_room(self.file)
        return self

    def append(self, record: Record) -> None:
        """Add one record; when this returns it is on the disk. Raises `RecordsLost` where it cannot be written."""
        try:
            self._begin()
            self._require_place()
            data = (record.to_json() + "\n").encode()
            while data:
                data = data[os.write(self._fd, data) :]
            if not self._streams:
                os.fsync(self._fd)
        except OSError as error:
            raise RecordsLost(self.file, error.strerror) from error

    def forget(self, outdated: Callable[[CellRecord], bool]) -> None:
        """Leave out kept records that others will take the place of; has a meaning before the first record only."""
        self._kept = tuple(record for record in self._kept if not outdated(record))

    def _begin(self) -> None:
        """Open what is written to: with the first record, so that a run that has none leaves an earlier one's alone."""
        if self._fd >= 0:
            return
        self._streams = is_stream(self.file)
        written = self.file if self._streams else partial_path(self.file)
        if not self._streams:
            _refuse_second_writer(self.file)
        write_text(written, "".join(record.to_json() + "\n" for record in self._kept))
        self._fd = _open_stream(written)
        if not self._streams and not _lock(self._fd):  # one that began at the same moment was quicker
            os.close(self._fd)
            self._fd = -1
            raise _second_writer(self.file)

    def _require_place(self) -> None:
        """Raises `RecordsLost` where what is written to has no name any more: a run that began at the same moment may
        have put its own there, and giving that the file's name would take that run's records."""
        if self._streams:
            return
        partial = partial_path(self.file)
        if not partial.exists() or not os.path.samestat(os.fstat(self._fd), partial.stat()):
            reason = f"{partial} was replaced or removed meanwhile"
            raise RecordsLost(self.file, reason, "give each run that works at the same time a file of its own")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._begin()
        if self._fd >= 0:
            try:
                self._require_place()
                if not self._streams:
                    os.replace(partial_path(self.file), behind_links(self.file))
            except RecordsLost:
                if kind is None:  # else it is told already, or what ended the run is what counts
                    raise
            finally:
                os.close(self._fd)


def _lock(descriptor: int) -> bool:
    """Whether the file is this process's to write, until it is closed; the end of a process, any end, frees it. True
    as well where a file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _refuse_second_writer(file: Path) -> None:
    """Raises `UsageError` where another run is writing `file`: the later would take the earlier one's records away."""
    try:
        descriptor = os.open(partial_path(file), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not _lock(descriptor):
            raise _second_writer(file)
    finally:
        os.close(descriptor)


def _second_writer(file: Path) -> UsageError:
    return UsageError(f"another run is writing {file}", "wait for its end, or give this one a file of its own")


def require_room(file: Path) -> None:
    """Make the folder of a file that is to be written. Raises `CannotWrite` where no file can be made in it: before a
    run, not after its first cell."""
    if is_stream(file):
        return
    try:
        file = behind_links(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise CannotWrite(file, error.strerror) from error
