# The other scripts source this file. It finds Python 3.11, installs Debian packages, and makes .venv with nalb in it, and .venv-torch
# with nalb and PyTorch, which needs a newer numpy than MXNet can have.
# Each step is done once and its result kept; after a change of pyproject.toml or of a C file nalb is installed again.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${NALB_VENV:-$repo/.venv}
venv_torch=$venv-torch
apt_wait_s=60      # the longest wait for a lock that another apt holds
set_up_wait_s=600  # the longest wait for another set-up that installs its packages
policy_mark='# of the set-up of nalb'

case $repo$venv in
  *[[:space:]:]*)
    echo "$repo: MXNet's processes cannot load a library from a path with a space or a colon: move the clone" >&2
    exit 1
    ;;
esac

python311() {
  local candidate
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  echo "Python 3.11 is needed, as mxnet 1.9.1 runs on no other: \`apt-get install python3.11\` on Debian 12, elsewhere" \
    "\`uv python install 3.11\` or conda; PyTorch alone needs no 3.11 (docs/pytorch.md)" >&2
  return 1
}

# Before any package is installed. A Debian 12 without Python gets it with the packages.
if [ ! -x "$venv/bin/python" ] && command -v python3 >/dev/null; then python311 >/dev/null || exit 1; fi

need_debian_packages() { # name... : installs the missing packages if it runs as root; otherwise names the packages that it skips
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "not root: cannot install ${missing[*]}; what needs them is skipped" >&2
    return 0
  fi
  echo "installing ${missing[*]}"
  quietly install_without_daemons "${missing[@]}"
}

quietly() ( # command... : runs a command and shows its output only if it fails; its output to descriptor 3 is shown at once
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  "$@" 3>&1 >"$log" 2>&1 || {
    code=$?
    cat "$log" >&2
    exit "$code"
  }
)

install_without_daemons() ( # name... : installs packages so that none of their services starts, now or at the next boot
  policy=/usr/sbin/policy-rc.d
  exec {folder}<"${policy%/*}"
  if ! flock -n "$folder"; then # without this lock, the first of two set-ups to end would remove the other's policy
    echo "waiting up to $set_up_wait_s s for another set-up, which installs packages" >&3
    flock -w "$set_up_wait_s" "$folder" || { echo "the other set-up has not ended: try again later"; exit 1; }
  fi
  if [ ! -e "$policy" ] || grep -qx "$policy_mark" "$policy"; then # with the mark: of a set-up that was killed
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\n%s\nexit 101\n' "$policy_mark" >"$policy" && chmod 755 "$policy" || exit
  fi
  apt_get update -qq && apt_get install -y -qq --no-install-recommends "$@" || exit
  case " $* " in
    *" openssh-server "*) ! command -v systemctl >/dev/null || systemctl --quiet disable ssh.service ssh.socket ;;
  esac
)

apt_get() ( # arguments... : runs apt-get, waiting while another process holds apt's lock; apt's own option does not cover `update`
  said=$(mktemp)
  trap 'rm -f "$said"' EXIT
  end_s=$((SECONDS + apt_wait_s)) is_told=
  until DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get "$@" >"$said" 2>&1; do
    code=$?
    if ! lock=$(grep -m 1 '^E: Could not get lock ' "$said") || [ "$SECONDS" -ge "$end_s" ]; then
      cat "$said"
      exit "$code"
    fi
    [ "$is_told" ] || echo "waiting up to $apt_wait_s s for the lock ${lock#E: Could not get lock }" >&3
    is_told=yes
    sleep 1
  done
  cat "$said"
)

install_nalb() { # extras, venv: '[mxnet]' or '[dev,mxnet]' in $venv, which is the default; '[torch-tests]' in $venv_torch
  local venv=${2:-$venv} stamp want
  want=$(cat "$repo/pyproject.toml" "$repo"/kvstore_patch/shim/*.[ch] "$repo"/netem/*.[ch] | sha256sum | cut -c1-16)
  stamp=$venv/nalb-installed
  case $(cat "$stamp" 2>/dev/null) in "$want$1" | "$want[dev,mxnet]") return 0 ;; esac # the longer contains all of the other
  echo "setting up $venv (once; it takes a minute or two)"
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # also true where an earlier set-up stopped half-way
    local python
    python=$(python311) && quietly "$python" -m venv "$venv" || return
  fi
  local pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
  quietly "${pip[@]}" --upgrade pip 'setuptools>=77' wheel || return
  quietly "${pip[@]}" --no-build-isolation -e "$repo$1" || return
  echo "$want$1" >"$stamp"
}
