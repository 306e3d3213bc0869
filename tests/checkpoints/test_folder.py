"""The folder: a good checkpoint is always there, and the newest good one is found."""

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nalb.checkpoints import folder
from nalb.checkpoints.file import VERSION
from nalb.errors import CheckpointError
from tests.checkpoints.examples import example


def write(place: Path, *iterations: int) -> list[Path]:
    return [folder.write(place, example(iteration), "n0") for iteration in iterations]


def iterations(place: Path) -> list[int]:
    return [int(path.stem.split("-")[1]) for path in folder.paths(place)]


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    assert folder.newest(tmp_path / "none") == (None, [])
    (tmp_path / "notes.txt").touch()
    assert folder.newest(tmp_path) == (None, [])


def test_the_newest_is_found_and_older_ones_go(tmp_path: Path) -> None:
    *_, last, _ = write(tmp_path / "new", 20, 999_999_999, 1_000_000_000, 40)
    found, skipped = folder.newest(tmp_path / "new")
    assert found is not None
    assert (found.checkpoint.progress.iteration, skipped) == (1_000_000_000, [])
    folder.prune(last, 2)
    assert iterations(tmp_path / "new") == [999_999_999, 1_000_000_000]


def test_other_users_cannot_read_a_checkpoint(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        (written,) = write(tmp_path, 20)
    finally:
        os.umask(umask)
    assert written.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("keep", [1, 2])
def test_the_one_just_written_stays_though_newer_ones_cannot_be_read(tmp_path: Path, keep: int) -> None:
    """Training went on from iteration 20; the newer ones may be readable the next time, so they stay too."""
    for unreadable in (60, 80):
        (tmp_path / folder.file_name(unreadable)).mkdir()
    *_, written = write(tmp_path, 10, 20, 40)
    folder.prune(written, keep)
    assert iterations(tmp_path) == [20, 40, 60, 80][2 - keep :]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def tear(path: Path) -> None:
    """What a lost write leaves: the length is there, the second half never came."""
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + bytes(path.stat().st_size - half))


def rename(path: Path) -> None:
    path.rename(path.with_name(folder.file_name(99)))


@pytest.mark.parametrize("damage", [cut, flip, empty, tear, rename])
def test_damaged_ones_are_skipped(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(write(tmp_path, 20, 40)[1])
    found, skipped = folder.newest(tmp_path)
    assert found is not None
    assert found.checkpoint.progress.iteration == 20
    assert len(skipped) == 1
    assert skipped[0].why
    assert skipped[0].is_damaged
    if damage in (cut, empty, rename):  # the others damage the arrays, which newest_progress does not read
        assert folder.newest_progress(tmp_path) == (found.checkpoint.progress, skipped)


def test_the_progress_is_told_by_a_files_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or by the whole file, where the header is longer or damaged."""
    flip(write(tmp_path, 20, 40)[1])
    assert folder.newest_progress(tmp_path) == (example(40).progress, [])
    damaged = folder.newest(tmp_path)[1]
    monkeypatch.setattr(folder, "BEGINNING_BYTES", 100)
    assert folder.newest_progress(tmp_path) == (example(20).progress, damaged)


def test_what_cannot_be_read_just_now_is_skipped_and_not_damaged(tmp_path: Path) -> None:
    write(tmp_path, 20)
    (tmp_path / folder.file_name(40)).mkdir()
    found, (skipped,) = folder.newest(tmp_path)
    assert found is not None
    assert (skipped.path.name, skipped.is_damaged) == (folder.file_name(40), False)


def test_another_versions_checkpoint_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training would begin anew, or lose what came after an older one."""
    monkeypatch.setattr("nalb.checkpoints.file.VERSION", VERSION + 1)
    (newer,) = write(tmp_path, 40)
    monkeypatch.undo()
    write(tmp_path, 20)
    formats = f"it has format {VERSION + 1}, this nalb reads {VERSION}"
    with pytest.raises(
        CheckpointError,
        match=rf"checkpoint {newer}: {formats}: use the one",
    ):
        folder.newest(tmp_path)
    with pytest.raises(CheckpointError, match=formats):
        folder.newest_progress(tmp_path)


def test_a_setting_that_could_not_be_read_back_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, 20)
    checkpoint = replace(example(40), settings={"a": object()})
    with pytest.raises(CheckpointError, match="cannot hold settings 'a'"):
        folder.write(tmp_path, checkpoint, "n1")
    assert [path.name for path in tmp_path.iterdir()] == [folder.file_name(20)]


def test_nothing_but_damaged_ones(tmp_path: Path) -> None:
    for path in write(tmp_path, 20, 40):
        flip(path)
    found, skipped = folder.newest(tmp_path)
    assert found is None
    assert [one.path.name for one in skipped] == [folder.file_name(40), folder.file_name(20)]


@contextmanager
def no_large_files() -> Iterator[None]:
    """A file may have 1,000 bytes, as if the disk were full then: what a write raises (EFBIG for ENOSPC) comes from the kernel.

    Around the write alone: it holds for pytest's own output as well, which may go to a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write(tmp_path, 20)
    with (
        pytest.raises(CheckpointError) as caught,
        no_large_files(),
    ):
        folder.write(tmp_path, example(40, 5000), "n1")
    assert caught.value.writing == 40
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [folder.file_name(20)]
    found, skipped = folder.newest(tmp_path)
    assert (found is not None, skipped) == (True, [])


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError) as caught:
        folder.write(tmp_path / "file", example(40), "n1")
    assert caught.value.writing == 40
    assert str(caught.value).endswith(f" in {tmp_path / 'file'}: choose another; older checkpoints are as they were")
    with pytest.raises(CheckpointError, match="choose another"):
        folder.newest(tmp_path / "file")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_needs_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError, match=f"{os.strerror(code)} in {tmp_path}: make room there; older"):
        write(tmp_path, 20)


def test_a_file_system_that_flushes_no_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    assert folder.write(tmp_path, example(7), "n0").exists()


def test_an_interrupted_writer_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the process before the rename leaves the older ones, and a file that tells."""

    def die(_: int) -> None:
        raise KeyboardInterrupt

    write(tmp_path, 20)
    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        folder.write(tmp_path, example(40), "node-1.b")
    assert folder.cut_short(tmp_path) == {"node-1.b": 40}
    assert iterations(tmp_path) == [20]
    folder.sweep(tmp_path, "node-1")
    assert folder.cut_short(tmp_path) == {"node-1.b": 40}
    folder.sweep(tmp_path)
    assert folder.cut_short(tmp_path) == {}
    assert iterations(tmp_path) == [20]
