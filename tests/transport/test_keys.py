"""Key files: what is written is read again, private, and nothing else is taken for one."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.cli.main import run
from nalb.errors import InputError, MachineError
from nalb.transport.keys import MAX_NODES, key_path, load_keys, make_keys, write_keys
from netem import rootless

ADDRESSES = {"n0": "10.0.0.1", "n1": "10.0.0.2", "n2": "host-c.example"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_each_node_has_its_own_key_and_everyone_elses_public_one(tmp_path: Path) -> None:
    made = make_keys(ADDRESSES)
    write_keys(tmp_path / "keys", made)
    read = {name: load_keys(key_path(tmp_path / "keys", name), name) for name in ADDRESSES}
    assert read == made
    assert len({one.secret for one in made.values()} | {one.public for one in made.values()}) == 6
    assert {one.peers for one in read.values()} == {made["n0"].peers}
    assert read["n1"].addresses() == ADDRESSES
    for name, one in made.items():
        text = key_path(tmp_path / "keys", name).read_text()
        assert one.secret.hex() in text
        assert not any(other.secret.hex() in text for other in made.values() if other is not one)
        assert one.secret.hex() not in repr(one)
        assert repr(one.secret) not in repr(one)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    import os

    before = os.umask(0)
    try:
        write_keys(tmp_path / "keys", make_keys(ADDRESSES))
    finally:
        os.umask(before)
    assert mode(tmp_path / "keys") == 0o700
    assert {mode(path) for path in (tmp_path / "keys").iterdir()} == {0o600}


def test_keys_are_replaced_only_by_force(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    write_keys(folder, make_keys({"n1": "10.0.0.2"}))
    before = load_keys(key_path(folder, "n1"))
    with pytest.raises(InputError, match=r"n1\.keys exists: .*--force"):
        write_keys(folder, make_keys(ADDRESSES))
    assert [path.name for path in folder.iterdir()] == ["n1.keys"]  # nothing half done
    write_keys(folder, make_keys(ADDRESSES), force=True)
    assert load_keys(key_path(folder, "n1")).secret != before.secret
    assert mode(key_path(folder, "n1")) == 0o600


@pytest.mark.parametrize(("what", "loose"), [(".", 0o750), (".", 0o701), ("n0.keys", 0o640), ("n0.keys", 0o604)])
def test_loose_modes_are_refused_in_one_line(tmp_path: Path, what: str, loose: int) -> None:
    folder = tmp_path / "keys"
    write_keys(folder, make_keys(ADDRESSES))
    (folder / what).chmod(loose)
    with pytest.raises(InputError, match=f"has mode {loose:o}, open to others: chmod") as raised:
        load_keys(folder / "n0.keys")
    assert "\n" not in str(raised.value)
    if what == ".":
        with pytest.raises(InputError, match="open to others"):
            write_keys(folder, make_keys(ADDRESSES), force=True)


def test_another_nodes_file_is_refused(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", make_keys(ADDRESSES))
    with pytest.raises(InputError, match="holds the keys of node n0, this is n1"):
        load_keys(tmp_path / "keys" / "n0.keys", "n1")


def test_a_pair_that_does_not_belong_together_is_refused_and_not_shown(tmp_path: Path) -> None:
    keys, other = make_keys(ADDRESSES)["n0"], make_keys(ADDRESSES)["n0"]
    write_keys(tmp_path / "keys", {"n0": keys})
    path = tmp_path / "keys" / "n0.keys"
    path.write_text(keys.text().replace(keys.secret.hex(), other.secret.hex()))
    with pytest.raises(InputError, match="do not belong together") as raised:
        load_keys(path)
    assert other.secret.hex() not in str(raised.value)


@given(st.binary(max_size=400), st.data())
def test_no_changed_file_is_read_as_other_keys(junk: bytes, data: st.DataObject) -> None:
    """Any bytes put anywhere: the same keys, or InputError; never another key under a node's name unnoticed."""
    import tempfile

    keys = make_keys(ADDRESSES)["n0"]
    text = keys.text().encode()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    with tempfile.TemporaryDirectory() as folder:
        write_keys(Path(folder), {"n0": keys})
        path = Path(folder) / "n0.keys"
        path.write_bytes(text[:first] + junk + text[last:])
        try:
            read = load_keys(path, "n0")
        except InputError:
            return
        assert (read.public, read.secret) == (keys.public, keys.secret)


@pytest.mark.parametrize(
    ("addresses", "says"),
    [
        ({}, "keys for 0 nodes"),
        ({f"n{i}": f"h{i}" for i in range(MAX_NODES + 1)}, "give 1 to 2048"),
        ({"n0": "10.0.0.1", "n1": "10.0.0.1"}, "nodes n0 and n1 are both at 10.0.0.1"),
        ({"n 0": "10.0.0.1"}, "node name 'n 0'"),
        ({"../n0": "10.0.0.1"}, "node name '../n0'"),
        ({"n0": "10.0.0.1\n"}, "address '10.0.0.1\\\\n'"),
        ({"n0": "a" * 64}, "address 'aaa"),
        ({"n0": ""}, "address ''"),
    ],
)
def test_nodes_that_no_file_can_hold(addresses: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_keys(addresses)


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_a_full_disk_leaves_the_keys_as_they_were(tmp_path: Path, names: list[str]) -> None:
    """On a disk that has room for one file beside the keys that the four new ones would replace."""
    if subprocess.run(rootless.TRIAL, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs user namespaces")
    before, folder = tmp_path / "before", tmp_path / "keys"
    before.mkdir(0o700)
    folder.mkdir()
    if names:
        write_keys(before, make_keys({name: f"host-{name}" for name in names}))
    nalb = f"{sys.executable} -m nalb.cli.main keys --force --out {folder} --nodes a=10.0.0.1,b=10.0.0.2,c=10.0.0.3,d=10.0.0.4"
    steps = f"cp -a {before}/. {folder} && {{ {nalb}; echo $?; diff -r {before} {folder}; }}"
    disk = f"mount -t tmpfs -o mode=700,size={4 * len(names) + 4}k tmpfs {folder} && {steps}"
    done = subprocess.run([*rootless.UNSHARE, "sh", "-c", disk], capture_output=True, text=True, check=False)
    says = f"nalb keys: {folder}: No space left on device: make room there, or choose another directory\n"
    assert (done.stdout, done.stderr) == (f"{MachineError.exit_code}\n", says)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "keys")
    assert run(["keys", "--out", out, "--nodes", "a=10.0.0.1,b=10.0.0.2"]) == 0
    assert load_keys(tmp_path / "keys" / "b.keys", "b").addresses() == {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert run(["keys", "--out", out, "--nodes", "a=10.0.0.1"]) == 2
    assert run(["keys", "--out", out, "--nodes", "localhost", "--force"]) == 0
    assert load_keys(tmp_path / "keys" / "localhost.keys").addresses() == {"localhost": "127.0.0.1"}
    hosts = tmp_path / "hosts.toml"
    hosts.write_text("[[hosts]]\nname = 'x'\naddress = '10.9.0.1'\n[[hosts]]\nname = 'y'\naddress = '10.9.0.2'\n")
    assert run(["keys", "--out", out, "--hosts", str(hosts)]) == 0
    assert load_keys(tmp_path / "keys" / "y.keys", "y").addresses() == {"x": "10.9.0.1", "y": "10.9.0.2"}
    assert run(["keys", "--out", out, "--nodes", "a=10.0.0.1,a=10.0.0.2", "--force"]) == 2
    assert run(["keys", "--out", out, "--nodes", "localhost,b=10.0.0.2", "--force"]) == 2
    assert run(["keys", "--out", out, "--nodes", "a..b"]) == 2
    assert run(["keys", "--out", out, "--nodes", "a=1.2.3.999", "--force"]) == 2
    printed = capsys.readouterr()
    for path in (tmp_path / "keys").iterdir():
        own = load_keys(path)
        assert own.secret.hex() not in printed.out + printed.err
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["nalb keys"] * 5
