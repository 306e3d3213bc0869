# Sourced by the other scripts: finds Python 3.11, installs what Debian must bring, makes .venv with nalb in it.
# Everything is done once and kept; a change of pyproject.toml or of the van's C files installs again.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${NALB_VENV:-$repo/.venv}

need_debian_packages() { # name... : installs those that are missing, as root; says what is skipped otherwise
  local missing=() name
  for name in "$@"; do dpkg -s "$name" >/dev/null 2>&1 || missing+=("$name"); done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "not root: cannot install ${missing[*]}; what needs them is skipped" >&2
    return 0
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq && install_without_daemons "${missing[@]}"
}

install_without_daemons() ( # name... : no service of theirs starts, now or at the next boot
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  case " $* " in
    *" openssh-server "*) ! command -v systemctl >/dev/null || systemctl --quiet disable ssh.service ssh.socket ;;
  esac
)

python311() {
  local candidate
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  echo "Python 3.11 is needed (mxnet 1.9.1 has no wheel that runs on others): apt-get install python3.11" >&2
  return 1
}

install_nalb() { # extras: '' or '[dev]'
  local stamp want
  want=$(cat "$repo/pyproject.toml" "$repo"/kvstore_patch/van/*.[ch] | sha256sum | cut -c1-16)
  stamp=$venv/nalb-installed
  case $(cat "$stamp" 2>/dev/null) in "$want$1" | "$want[dev]") return 0 ;; esac # [dev] has all that '' has
  echo "setting up $venv (once)"
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$(python311)" -m venv "$venv" # also where an earlier one stopped half way
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip 'setuptools>=75' wheel
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation -e "$repo$1"
  echo "$want$1" >"$stamp"
}
