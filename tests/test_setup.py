"""scripts/setup.sh: what it leaves of a machine, and what it shows. /usr/sbin is a mount of the test's own.

dpkg-query is a stand-in, and so is apt-get but where its locks matter: there it is the real one, in folders of the test's own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAND_INS = {
    "dpkg-query": "exit 1",
    "apt-get": 'echo "apt-get $1" >>"$LOG"; echo "W: $1 chatters"; echo "W: $1 chatters" >&2; [ "$1" = update ] && exit; '
    '/usr/sbin/policy-rc.d; echo "policy $?" >>"$LOG"; exit $FAILS',
    "systemctl": 'echo "systemctl $*" >>"$LOG"',
}


APT_CONF = """
Dir::State "{0}/state";
Dir::State::status "{0}/admin/status";
Dir::Cache "{0}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "/dev/null";
"""
INSTALLED = """Package: openssh-server
Status: install ok installed
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: nothing is left to install
"""
HOLD = """
import fcntl, sys, time
from pathlib import Path
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.02)
"""


def installing(
    tmp_path: Path, before: str, fails: int, then: str = "", stand_ins: Mapping[str, str] = STAND_INS
) -> tuple[int, list[str], "subprocess.CompletedProcess[str]"]:
    """Exit code of installing openssh-server, what happened, and the process.

    The last line of what happened is what policy-rc.d is afterwards. `before` runs before set-up is loaded, `then` after.
    """
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    script = f"""
        set -e
        mount -t tmpfs none /usr/sbin
        {before}
        bash -c 'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; {then}
          need_debian_packages openssh-server' || code=$?
        cat /usr/sbin/policy-rc.d >>"$LOG" || echo none >>"$LOG"
        exit ${{code:-0}}
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), "FAILS": str(fails)}
    environment["NALB_VENV"] = sys.prefix  # an environment that is there
    if (tmp_path / "apt.conf").exists():
        environment["APT_CONFIG"] = str(tmp_path / "apt.conf")
    argv = ["unshare", "-m", "bash", "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, log.read_text().splitlines(), done


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_no_daemon_of_a_package_is_started(tmp_path: Path) -> None:
    disabled = "systemctl --quiet disable ssh.service ssh.socket"
    code, happened, done = installing(tmp_path, "", 0)
    assert (code, happened) == (0, ["apt-get update", "apt-get install", "policy 101", disabled, "none"])
    assert done.stdout == "installing openssh-server\n", "what apt-get says is nobody's to act on"
    assert "chatters" not in done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_failed_installation_leaves_no_policy(tmp_path: Path) -> None:
    code, happened, done = installing(tmp_path, "", 100)
    assert (code, happened) == (100, ["apt-get update", "apt-get install", "policy 101", "none"])
    assert done.stderr.count("W: update chatters") == done.stderr.count("W: install chatters") == 2, "all is shown"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_policy_of_a_set_up_that_was_killed_goes(tmp_path: Path) -> None:
    mark = "# of the set-up of nalb"
    before = f"printf '#!/bin/sh\\n{mark}\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d"
    code, happened, _ = installing(tmp_path, before, 0)
    assert (code, happened[2], happened[-1]) == (0, "policy 101", "none")


@pytest.mark.parametrize("state", ["half-configured", "unpacked", "config-files"])
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_package_that_is_half_there_is_missing(tmp_path: Path, state: str) -> None:
    half = STAND_INS | {"dpkg-query": f"echo -n {state}"}
    assert "apt-get install" in installing(tmp_path, "", 0, "", half)[1]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    before = "printf '#!/bin/sh\\nexit 7\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d"
    code, happened, _ = installing(tmp_path, before, 0)
    assert (code, happened[2], happened[-1]) == (0, "policy 7", "exit 7")


def with_lock_held(tmp_path: Path, lock: str, is_freed: bool, then: str = "") -> "subprocess.CompletedProcess[str]":
    """Install what is there already, by the real apt-get, while another process holds one of its locks.

    is_freed: that process ends once the set-up, which has met the lock, sleeps before it tries again.
    """
    for folder in ("state/lists/partial", "cache/archives/partial", "admin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "admin" / "status").write_text(INSTALLED)
    (tmp_path / "apt.conf").write_text(APT_CONF.format(tmp_path))
    met = tmp_path / "met"
    argv = [sys.executable, "-c", HOLD, str(tmp_path / lock), str(met if is_freed else tmp_path / "never")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        stand_ins = {name: body for name, body in STAND_INS.items() if name != "apt-get"}
        stand_ins["sleep"] = f'touch {met}; exec /bin/sleep "$@"'
        (tmp_path / "log").touch()
        try:
            _, _, done = installing(tmp_path, "", 0, then, stand_ins)
        finally:
            holder.kill()
    return done


needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None or os.geteuid() != 0, reason="needs apt-get and root")


@pytest.mark.root
@needs_apt
@pytest.mark.parametrize("lock", ["state/lists/lock", "cache/archives/lock", "admin/lock-frontend", "admin/lock"])
def test_another_apt_is_waited_for(tmp_path: Path, lock: str) -> None:
    done = with_lock_held(tmp_path, lock, True)
    assert (done.returncode, done.stderr.replace("cat: /usr/sbin/policy-rc.d: No such file or directory\n", "")) == (
        0,
        "",
    )
    awaited = f"waiting up to 60 s for the lock {tmp_path / lock}. It is held by process "
    assert [line.startswith(awaited) for line in done.stdout.splitlines()] == [False, True]


@pytest.mark.root
@needs_apt
def test_another_apt_that_does_not_end_is_named(tmp_path: Path) -> None:
    done = with_lock_held(tmp_path, "state/lists/lock", False, "apt_wait_s=1")
    assert done.returncode == 100
    assert done.stderr.count(f"E: Could not get lock {tmp_path / 'state/lists/lock'}. It is held by process ") == 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_two_set_ups_at_once_start_no_daemon_either(tmp_path: Path) -> None:
    """The first that ends must not take the other's policy away."""
    # The second one's apt-get waits, as for a lock, until the first one's is done.
    second = tmp_path / "second"
    second.mkdir()
    before = f"""
        printf '#!/bin/sh\n[ "$1" = update ] || sleep 2\n' >"{second}/apt-get"
        printf '#!/bin/sh\nexit 1\n' >"{second}/dpkg-query"
        chmod 755 "{second}"/*
        (PATH={second}:$PATH bash -c 'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; need_debian_packages first') &
        sleep 1
    """
    slow = STAND_INS | {"apt-get": STAND_INS["apt-get"].replace("/usr/sbin/policy", "sleep 2; /usr/sbin/policy")}
    code, happened, done = installing(tmp_path, before, 0, "", slow)
    assert (code, happened[2]) == (0, "policy 101"), done.stderr


def test_where_python_is_another_no_package_is_installed(tmp_path: Path) -> None:
    """As on Debian 13 and Ubuntu 24.04."""
    programs = {name: f'exec {shutil.which(name)} "$@"' for name in ("bash", "dirname")} | STAND_INS
    programs["python3"] = "exit 1"  # that its version is not 3.11
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = f'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; need_debian_packages gcc'
    environment = {"PATH": str(tmp_path), "NALB_VENV": str(tmp_path / "none"), "LOG": str(tmp_path / "log")}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "`uv python install 3.11` or conda; PyTorch alone needs no 3.11" in done.stderr
    assert not (tmp_path / "log").exists()


def install_nalb(venv: Path, extras: str) -> subprocess.CompletedProcess[str]:
    """Without an index: pip can install nothing."""
    script = f'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; install_nalb "{extras}"'
    environment = {**os.environ, "NALB_VENV": str(venv), "PIP_NO_INDEX": "1"}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.jobs
def test_an_environment_without_pip_is_mended(tmp_path: Path) -> None:
    """As `python -m venv` leaves it where ensurepip is missing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    assert "No module named pip" not in install_nalb(tmp_path, "[mxnet]").stderr
    subprocess.run([str(tmp_path / "bin" / "python"), "-m", "pip", "--version"], check=True)


@pytest.mark.parametrize("fails", [0, 3])
def test_what_pip_says_is_shown_only_if_it_fails(tmp_path: Path, fails: int) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$3" = --version ] && exit\necho chatters; echo chatters >&2; exit {fails}\n')
    python.chmod(0o755)
    done = install_nalb(tmp_path, "[mxnet]")
    assert done.returncode == fails
    assert done.stdout == f"setting up {tmp_path} (once; it takes a minute or two)\n"
    assert done.stderr.count("chatters") == (2 if fails else 0)
    assert (tmp_path / "nalb-installed").exists() == (not fails)


def test_what_the_tests_need_is_enough_for_the_demo(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/true")
    assert "setting up" in install_nalb(tmp_path, "[dev,mxnet]").stdout
    assert install_nalb(tmp_path, "[mxnet]").stdout == ""
    (tmp_path / "nalb-installed").unlink()
    assert "setting up" in install_nalb(tmp_path, "[mxnet]").stdout
    assert "setting up" in install_nalb(tmp_path, "[dev,mxnet]").stdout
