"""The line on the attempts of a job that was started again."""

from nalb.events import AbortEvent, encode_line
from nalb.reporting.attempts import attempts_line


def write(folder, *words):
    folder.mkdir(exist_ok=True)
    (folder / "samples.jsonl").write_bytes(b"".join(encode_line(AbortEvent(at_s=1.0, reason=one)) for one in words))


def test_a_run_with_one_attempt_has_no_line(tmp_path):
    write(tmp_path, "n0 is gone")
    assert attempts_line(tmp_path) == ""


def test_of_many_failures_the_newest_are_named(tmp_path):
    write(tmp_path, "n0 is gone")
    for number in range(1, 12):
        write(tmp_path / f"restart-{number}", "told first", f"reason\n{number}")
    (tmp_path / "restart-12").mkdir()
    (tmp_path / "restart-x").mkdir()
    newest = "restart-9 failed: reason 9; restart-10 failed: reason 10; restart-11 failed: reason 11"
    told = f"restarted: what is told here is of restart-2 alone; 9 before the newest 3 failed too; {newest}"
    assert attempts_line(tmp_path / "restart-2") == f"{told}; {tmp_path / 'restart-12'} is the newest attempt"


def test_what_cannot_be_read_of_another_attempt_is_left_out(tmp_path):
    write(tmp_path / "restart-1", "n0 is gone")
    (tmp_path / "samples.jsonl").write_bytes(b'{"event":"failure","at_s":1}\n{"event":"fail')
    told = "restarted: what is told here is of restart-1 alone; restart-1 failed: n0 is gone"
    assert attempts_line(tmp_path / "restart-1") == told


def test_a_run_that_is_called_as_a_restart_is_none(tmp_path):
    write(tmp_path / "restart-1", "n0 is gone")
    assert attempts_line(tmp_path / "restart-1") == ""


def test_of_a_long_record_only_the_end_is_read(tmp_path):
    write(tmp_path, "n0 is gone")
    write(tmp_path / "restart-1")
    with (tmp_path / "samples.jsonl").open("r+b") as file:
        end = file.read()
        file.seek(0)
        file.truncate(1 << 33)  # 8 GiB of zeros, which take no room
        file.seek(0, 2)
        file.write(b"\n" + end)
    assert attempts_line(tmp_path / "restart-1").endswith("the first attempt failed: n0 is gone")
