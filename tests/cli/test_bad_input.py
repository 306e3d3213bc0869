"""What a user mistypes is one line that says what, where and what to do, before anything is started."""

from pathlib import Path

import pytest

from nalb.cli.main import run
from tests.networks import needs_privilege

NODE = '[[nodes]]\nname = "n0"\nup_mbp = 200\ndown_mbps = 100\n'
LOOPBACK_HOSTS = "".join(f"[[hosts]]\nname = '{name}'\naddress = '127.0.0.{k}'\n" for k, name in enumerate("ab", 1))
LOCAL = "--local 2 --framework mxnet"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands run, with wrong files."""
    (tmp_path / "one.toml").write_text(f'name = "one"\n{NODE}')
    (tmp_path / "loopback.toml").write_text(LOOPBACK_HOSTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("lanuch --local 2 -- true", "nalb: SUBCOMMAND 'lanuch' is unknown: did you mean 'launch'? choose of launch"),
        ("", "nalb: the following arguments are required: SUBCOMMAND: `nalb --help` says what there is"),
        ("launch", "nalb launch: one of the arguments --local --network --hosts --root is required"),
        ("launch --lokal 2 -- true", "nalb launch: '--lokal' is not understood: did you mean '--local'? `nalb launch"),
        ("launch --local 2 --schem", "nalb launch: argument --scheme: expected one argument"),
        ("launch --local two -- true", "nalb launch: --local two: choose 1 to 64 nodes, such as 4, or of each site"),
        ("launch --local 3+ -- true", "nalb launch: --local 3+: choose 1 to 64 nodes"),
        ("launch --local 40+25 -- true", "nalb launch: --local 40+25: choose 1 to 64 nodes"),
        ("launch --local 2 --hosts a.toml -- true", "nalb launch: argument --hosts: not allowed with argument --local"),
        pytest.param(
            "launch --network . -- true", "nalb launch: '.' is a folder: give a path, or one of ", marks=needs_privilege
        ),
        pytest.param(
            "launch --network wan4-statik -- true",
            "no network file 'wan4-statik': did you mean 'wan4-static'?",
            marks=needs_privilege,
        ),
        pytest.param(
            "launch --network one.toml -- true",
            "one.toml: nodes[0].up_mbp is unknown: did you mean 'up_mbps'? use up_",
            marks=needs_privilege,
        ),
        (
            "launch --hosts loopback.toml -- true",
            "hosts[0].address: 127.0.0.1 is this machine's loopback, which no oth",
        ),
        ("launch --local 2 --scheme exat -- true", "--scheme 'exat' is unknown: did you mean 'exact'? choose one of"),
        ("launch --local 2 --batching lbbsp -- true", "--batching 'lbbsp' is unknown: did you mean 'lb-bsp'?"),
        (
            f"launch {LOCAL} --batching asp -- true",
            "--batching asp is how MXNet's own KVStores train: add --scheme stock",
        ),
        ("launch --local 2 --framework torch --batching asp -- true", "--batching asp is of MXNet alone: leave it out"),
        (
            f"launch {LOCAL} --batching joint -- true",
            "--batching joint is a scheme's own: give --scheme joint, and leave out --batching",
        ),
        (
            f"launch {LOCAL} --batching lb-bsp --batch-most 5,6,7 -- true",
            "--batch-most='5, 6, 7': give one number of samples for all workers, or 2 with commas",
        ),
        (
            "launch --root 127.0.0.1 --nodes 3 --rank 0 --plain --framework mxnet --batching lb-bsp --batch-most 5,6 -- true",
            "--batch-most='5, 6': give one number of samples for all workers, or 3 with commas",
        ),
        (
            f"launch {LOCAL} --batching lb-bsp --batch-total 1 -- true",
            "--batch-total 1: give 2 workers 1 sample each, or",
        ),
        (
            f"launch {LOCAL} --batching lb-bsp --batch-total 99999999999 -- true",
            "--batch-total 99999999999: give 1 to 2147483648 samples",
        ),
        (f"launch {LOCAL} --alpha-bytes -5 -- true", "--alpha-bytes -5: choose 0.001 to 1e+12"),
        ("launch --local 2 --precision int9 -- true", "--precision 'int9' is unknown: did you mean 'int8'?"),
        (
            "launch --local 2 --framework tensorflow -- true",
            "--framework 'tensorflow' is unknown: choose of mxnet, torch",
        ),
        (f"launch {LOCAL} --out=~nobody-here/x -- true", "--out ~nobody-here/x: no home of that name is known here"),
        (f"launch {LOCAL} --out /dev/null/x -- true", "--out /dev/null/x: Not a directory: choose another"),
        (
            f"launch {LOCAL} --parallel fela --weights 1,2 --subset 9 -- true",
            "--subset 9: the job has 2 workers: choos",
        ),
        (f"launch {LOCAL} --parallel fela --weights 1,2 --subset 2 --apart -- true", "workers: choose at most 1"),
        ("compare --local 2", "give one workload: --replay MODEL, --train MODEL, or -- and a command"),
        ("compare --local 2 --replay mobilenet", "--local is for trainings of your own: give -- and a command, or"),
        ("compare --hosts a.toml --train cnn", "--hosts is for trainings of your own"),
        ("compare --local 2 --replay mobilenet -- true", "give one workload"),
        ("compare --local 2 true", "put -- before the command: nalb compare --network wan4-static -- python train.py"),
        ("compare --local 2 -- no-such-program", "COMMAND 'no-such-program' is not a program here"),
        ("compare --local 2 --iterations 5 -- true", "--iterations 5: your training decides how many: leave it out"),
        ("compare --local 2 --rounds 0 -- true", "--rounds 0: choose 1 to 1000"),
        ("compare --local 2 --batch-total 0 -- true", "--batch-total 0: give 1 to 2147483648 samples"),
        ("compare --local 2 --batching lb-bsp -- true", "leave them or the command out"),
        (f"compare {LOCAL} --schemes stok -- true", "unknown scheme 'stok': did you mean 'stock'? choose of auto"),
        (f"compare {LOCAL} --schemes exact,,average -- true", "name at least one, each once, with a comma between two"),
        (f"compare {LOCAL} --schemes oracle -- true", "--schemes oracle needs the rates of a network file"),
        (f"compare {LOCAL} --schemes p3 -- true", "--schemes: 'p3' runs replays only"),
        (f"compare {LOCAL} --schemes exact+int8 -- true", "fewer bytes need the plane for PyTorch"),
        ("compare --local 2 --framework torch --schemes stock -- true", "PyTorch alone is gloo"),
        (
            "compare --local 2 --framework torch --schemes gloo --encrypt -- true",
            "--schemes gloo does not encrypt: leave out --encrypt, or compare without gloo",
        ),
        (
            "compare --network uneven4-cpu --train cnn --batching off,lb-bsp --metrics 9109",
            "--metrics 9109: with --batching each training has a record of its own",
        ),
        (
            "compare --network wan4-static --framework torch --replay mobilenet --transport pyzmq",
            "--transport is of MXNet alone: leave it out",
        ),
        ("compare --network wan4-static --replay mobilenet --rounds 2", "only your own training has rounds"),
        ("compare --network wan4-static --replay mobilenet --encrypt", "are for trainings of your own: leave them out"),
        (
            "compare --network wan4-static --replay mobilnet",
            "--replay 'mobilnet' is unknown: did you mean 'mobilenet'?",
        ),
        ("compare --network wan4-static --replay mobilenet --iterations 0", "--iterations 0: choose 1 to 100000"),
        ("compare --network wan4-static --train cnn --schemes auto --batching lbbsp", "did you mean 'lb-bsp'?"),
        (
            "trace nodir",
            "nalb trace: nodir: no such directory: give the run directory that the job printed, or its --out",
        ),
        ("report nodir", "nalb report: nodir: no such directory"),
        ("why nodir", "nalb why: nodir: no such directory"),
        ("watch nodir --once", "nalb watch: nodir: no such directory"),
        (
            "watch . --once",
            "nalb watch: . holds nothing of a run: give the run directory that the job printed, or its --out",
        ),
        ("net", "nalb net: the following arguments are required: ACTION"),
        ("net statu", "nalb net: ACTION 'statu' is unknown: did you mean 'status'? choose of up, verify, down, status"),
        ("net random --family evn --nodes 4 --seed 1", "family 'evn' is unknown: did you mean 'even'?"),
        ("plan --capacities-mbps 1,2 --model-bytes 9 --scheme avrage", "'avrage' is unknown: did you mean 'average'?"),
        ("plan --network= --model-bytes 9", "nalb plan: '' is a folder: give a path, or one of "),
        ("metrics . --port 0 --while 99999999999", "--while 99999999999: give the id of a process, 1 to 4194304"),
        ("metrics . --port 0 --while 0", "--while 0: give the id of a process"),
        ("simulate --network wan4-static --replay mobilenet --schemes exat", "did you mean 'exact'? choose of"),
        ("doctor --hosts loopback.toml", "nalb doctor: loopback.toml: hosts[0].address"),
        ("doctor extra", "nalb doctor: 'extra' is not understood: `nalb doctor --help` says what there is"),
        ("--print-completion fish", "nalb: --print-completion 'fish' is unknown: choose of bash, zsh"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    before = sorted(folder.iterdir())
    code = run(words.split())
    printed = capsys.readouterr()
    (line,) = (printed.out + printed.err).splitlines()
    assert code == 2
    assert says in line
    assert line.startswith((" ".join(["nalb", *words.split()[:1]]), "nalb: "))
    assert sorted(folder.iterdir()) == before


def test_what_follows_the_command_is_the_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--local", "2", "--scheme", "exat", "--", "python", "train.py", "--lokal", "3"]) == 2
    assert "--lokal" not in capsys.readouterr().err
