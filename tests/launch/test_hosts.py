"""Hosts files: what is taken, and that every mistake is one line that names file and field."""

import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nalb.errors import InputError
from nalb.launch.hosts import load_hosts
from nalb.launch.ranks import torch_program
from nalb.launch.ssh import remote_command, ssh_argv
from nalb.launch.venue import hosts_specs
from nalb.options import JobOptions
from nalb.process.own_program import own_argv

TWO = """
[defaults]
user = "train"
python = "/opt/nalb/bin/python"
directory = "~/job dir"
root_port = 9200
[defaults.environment]
PS_VERBOSE = "1"
[[hosts]]
name = "a"
address = "10.9.0.1"
worker = false
[[hosts]]
name = "b"
address = "10.9.0.2"
user = "other"
port = 2222
server = false
known_hosts = "/tmp/known"
identity_file = "/tmp/key"
"""


def write(folder: Path, text: str) -> Path:
    """A hosts file."""
    path = folder / "hosts.toml"
    path.write_text(text)
    return path


def test_a_hosts_own_fields_stand_before_defaults(tmp_path: Path) -> None:
    hosts = load_hosts(write(tmp_path, TWO))
    first, second = hosts.hosts
    assert (hosts.root_port, hosts.environment) == (9200, (("PS_VERBOSE", "1"),))
    assert (first.user, second.user, first.port, second.port) == ("train", "other", None, 2222)
    places = hosts.places()
    assert [(p.name, p.address, p.is_worker, p.is_server) for p in places] == [
        ("a", "10.9.0.1", False, True),
        ("b", "10.9.0.2", True, False),
    ]
    assert {place.python for place in places} == {"/opt/nalb/bin/python"}


def test_the_ssh_command(tmp_path: Path) -> None:
    first, second = load_hosts(write(tmp_path, TWO)).hosts
    assert ssh_argv(first)[-3:] == [
        "--",
        "10.9.0.1",
        "cd ~/'job dir' || exit 120; exec " + shlex.join(own_argv("nalb.launch.agent", python="/opt/nalb/bin/python")),
    ]
    argv = ssh_argv(second)
    for option in ("BatchMode=yes", 'UserKnownHostsFile="/tmp/known"', "StrictHostKeyChecking=accept-new"):
        assert argv[argv.index(option) - 1] == "-o"
    assert argv[argv.index("-p") + 1] == "2222"
    assert argv[argv.index("-l") + 1] == "other"
    assert not any("StrictHostKeyChecking" in word for word in ssh_argv(first))


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client")
@pytest.mark.parametrize("name", ["of  a job", '%h#\\ "it\'s"', "none"])
def test_ssh_takes_a_file_for_what_it_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    host = load_hosts(write(tmp_path, TWO)).hosts[1]
    argv = ssh_argv(replace(host, known_hosts=name, identity_file=name))
    told = subprocess.run([argv[0], "-G", *argv[1:-1]], capture_output=True, text=True, check=True).stdout.splitlines()
    assert f"userknownhostsfile {tmp_path / name}" in told
    assert f"identityfile {tmp_path / name.replace('%', '%%')}" in told  # which ssh expands later


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client")
def test_what_a_users_ssh_config_lets_ssh_pass_over_stays_so(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("IgnoreUnknown UseKeychain\nUseKeychain yes\nRemoteCommand true\n")
    argv = ssh_argv(load_hosts(write(tmp_path, TWO)).hosts[0])
    words = [argv[0], "-G", "-F", str(tmp_path / "config"), *argv[1:-1]]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "remotecommand true" not in told


def test_words_reach_the_hosts_shell_whole(tmp_path: Path) -> None:
    host = load_hosts(write(tmp_path, TWO.replace("~/job dir", "/a b; rm"))).hosts[0]
    assert remote_command(host, ["echo", "$HOME `x`"]) == "cd '/a b; rm' || exit 120; exec echo '$HOME `x`'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts = 3", "hosts is 3: give each as [[hosts]]"),
        ("[[hosts]]\nname = 'a'", "hosts[0].address is missing: give"),
        ("[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\nspeed = 3", "hosts[0].speed is unknown: use"),
        (
            "[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\nport = '22'",
            "hosts[0].port is '22': give a port, from 1 to 65535",
        ),
        ("[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\nport = 0", "hosts[0].port is 0: give a port, from 1 to 65535"),
        (
            "[[hosts]]\nname = 'a'\naddress = '-oProxyCommand=x'",
            "hosts[0].address is '-oProxyCommand=x': give an IPv4 address or a host's name",
        ),
        ("[[hosts]]\nname = 'a/b'\naddress = '10.0.0.1'", "hosts[0].name is 'a/b': give 1 to 63 letters"),
        ("[[hosts]]\nname = 'a'\naddress = 'nowhere.invalid'", "hosts[0].address: 'nowhere.invalid' is not known"),
        ("[[hosts]]\nname = 'a'\naddress = '1.2'", "hosts[0].address: '1.2' is not known (it is neither a name nor"),
        (
            "[defaults]\ncolour = 'red'\n[[hosts]]\nname = 'a'\naddress = '10.0.0.1'",
            "defaults.colour is unknown: use user",
        ),
        ("hosts = []", "hosts: none has worker = true"),
        ("[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\nworker = false", "hosts: none has worker = true"),
        ("[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\nserver = false", "hosts: none has server = true"),
        ("[[hosts]]\nname = 'a", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_hosts(path)
    assert str(caught.value).startswith(f"{path}: {says[:4]}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "address", "says"),
    [
        ("a", "10.0.0.2", "hosts[1].name: 'a' repeats"),
        ("b", "10.0.0.1", "hosts[1].address: '10.0.0.1' repeats"),
        ("b", "127.0.0.1", "hosts[1].address: 127.0.0.1 is this machine's loopback, which no other host"),
        ("b", "localhost", "hosts[1].address: localhost means 127.0.0.1, which no other host reaches"),
    ],
)
def test_hosts_that_do_not_go_together(tmp_path: Path, name: str, address: str, says: str) -> None:
    text = f"[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\n[[hosts]]\nname = '{name}'\naddress = '{address}'\n"
    with pytest.raises(InputError) as caught:
        load_hosts(write(tmp_path, text))
    assert says in str(caught.value)


@pytest.mark.parametrize("field", ["name", "address", "user", "python", "directory", "known_hosts", "identity_file"])
def test_no_word_ends_with_a_newline(tmp_path: Path, field: str) -> None:
    """A line of its own in a log, a key file or an ssh option."""
    words = {"name": "a", "address": "10.0.0.1"} | {field: "10.0.0.1" + r"\n"}
    text = "[[hosts]]\n" + "\n".join(f'{one} = "{word}"' for one, word in words.items())
    with pytest.raises(InputError, match=rf"hosts\[0\]\.{field} is '10\.0\.0\.1\\n': give "):
        load_hosts(write(tmp_path, text))


def test_no_variable_ends_with_a_newline(tmp_path: Path) -> None:
    says = r": defaults\.environment has the key 'PS_VERBOSE\\n': give a variable's name: letters, digits"
    with pytest.raises(InputError, match=says):
        load_hosts(write(tmp_path, TWO.replace("PS_VERBOSE", r'"PS_VERBOSE\n"')))


@pytest.mark.parametrize("value", ["4", "true", "[1]", '"a\\u0000b"'])
def test_a_variable_that_is_no_text_is_named(tmp_path: Path, value: str) -> None:
    text = TWO.replace("[defaults.environment]", f'[defaults.environment]\nA = "b"\nOMP_NUM_THREADS = {value}\nZ = 1')
    with pytest.raises(
        InputError, match=r"hosts\.toml: defaults\.environment\.OMP_NUM_THREADS.*: give a text, in quotes$"
    ):
        load_hosts(write(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "value", "is_mistake"),
    [
        ("NALB_SCHEME", "average", True),  # --scheme, and each of --schemes
        ("NALB_SCHEME", "exact", False),
        ("MASTER_PORT", "5", True),
        ("RANK", "1", True),
        ("NALB_NODE", "z", True),
        ("NALB_SAMPLES", "samples.jsonl", False),
        ("NALB_STARTUP_S", "300", False),
        ("OMP_NUM_THREADS", "3", False),
        ("MALLOC_ARENA_MAX", "3", False),
    ],
)
def test_the_file_sets_no_variable_otherwise_than_nalb(tmp_path: Path, name: str, value: str, is_mistake: bool) -> None:
    text = "[defaults.environment]\n" + f"{name} = '{value}'\n[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\n"
    hosts = load_hosts(write(tmp_path, text))
    options = JobOptions(root_port=9091, scheme="exact", batching="lb-bsp")
    program = torch_program(["true"])
    if not is_mistake:
        assert {spec.environment[name] for spec in hosts_specs(program, hosts, hosts.places(), options, None)} == {
            value
        }
        return
    with pytest.raises(InputError, match=rf"^hosts file: defaults.environment.{name}: nalb sets .*: leave it out"):
        hosts_specs(program, hosts, hosts.places(), options, None)


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    assert load_hosts(write(tmp_path, "\ufeff" + TWO)) == load_hosts(write(tmp_path, TWO))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_hosts(tmp_path / "hosts.toml")
