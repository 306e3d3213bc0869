"""scripts/setup.sh: what it leaves of a machine. apt-get and dpkg are stand-ins, /usr/sbin a mount of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAND_INS = {
    "dpkg": "exit 1",
    "apt-get": 'echo "apt-get $1" >>"$LOG"; [ "$1" = update ] && exit; '
    '/usr/sbin/policy-rc.d; echo "policy $?" >>"$LOG"; exit $FAILS',
    "systemctl": 'echo "systemctl $*" >>"$LOG"',
}


def installing(tmp_path: Path, before: str, fails: int) -> tuple[int, list[str]]:
    """Exit code of installing openssh-server, and what happened; the last line is what policy-rc.d is afterwards."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    script = f"""
        set -e
        mount -t tmpfs none /usr/sbin
        {before}
        bash -c 'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; need_debian_packages openssh-server' || code=$?
        cat /usr/sbin/policy-rc.d >>"$LOG" || echo none >>"$LOG"
        exit ${{code:-0}}
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), "FAILS": str(fails)}
    done = subprocess.run(["unshare", "-m", "bash", "-c", script], env=environment, capture_output=True, check=False)
    return done.returncode, log.read_text().splitlines()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_no_daemon_of_a_package_is_started(tmp_path: Path) -> None:
    disabled = "systemctl --quiet disable ssh.service ssh.socket"
    assert installing(tmp_path, "", 0) == (0, ["apt-get update", "apt-get install", "policy 101", disabled, "none"])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_failed_installation_leaves_no_policy(tmp_path: Path) -> None:
    assert installing(tmp_path, "", 100) == (100, ["apt-get update", "apt-get install", "policy 101", "none"])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="installing and mounting need root")
def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    before = "printf '#!/bin/sh\\nexit 7\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d"
    code, happened = installing(tmp_path, before, 0)
    assert (code, happened[2], happened[-1]) == (0, "policy 7", "exit 7")


def install_nalb(venv: Path, extras: str) -> subprocess.CompletedProcess[str]:
    """Without an index: pip can install nothing."""
    script = f'set -euo pipefail; . "{ROOT}/scripts/setup.sh"; install_nalb "{extras}"'
    environment = {**os.environ, "NALB_VENV": str(venv), "PIP_NO_INDEX": "1"}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


def test_an_environment_without_pip_is_mended(tmp_path: Path) -> None:
    """As `python -m venv` leaves it where ensurepip is missing."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    assert "No module named pip" not in install_nalb(tmp_path, "").stderr
    subprocess.run([str(tmp_path / "bin" / "python"), "-m", "pip", "--version"], check=True)


def test_what_the_tests_need_is_enough_for_the_demo(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/true")
    assert "setting up" in install_nalb(tmp_path, "[dev]").stdout
    assert install_nalb(tmp_path, "").stdout == ""
    (tmp_path / "nalb-installed").unlink()
    assert "setting up" in install_nalb(tmp_path, "").stdout
    assert "setting up" in install_nalb(tmp_path, "[dev]").stdout
