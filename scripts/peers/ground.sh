# What every peer stands on, to be sourced: where it is installed, where it writes, and an end for all that was started.
#
# A peer is a conversation. When it can be asked it says one line of JSON, {"peer": ..., "durable": ...}. Then each line of its
# stdin, "<clients> <seconds>", is one measurement, answered by one line with "rate", "p50_ms" and "p99_ms". It ends with its
# stdin. When it can't go on it says {"cannot": why}. Everything else that it has to say is on stderr.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scripts="$PWD/scripts/peers" installed="$PWD/.tools/peers"
mkdir -p "$installed"
data="$(mktemp -d "${TMPDIR:-/tmp}/berth-peer-XXXXXX")"
started=()
# What is run here leaves nothing in the folder of the scripts.
export PYTHONDONTWRITEBYTECODE=1

say() { printf '%s\n' "$*" >&2; }

cannot() {
  say "$*"
  printf '{"cannot":"%s"}\n' "${*//\"/\'}"
  exit 1
}

# Runs beside us, and ends when we do, however we end. What it prints goes into a file.
spawn() {
  local log="$1"
  shift
  setpriv --pdeathsig TERM "$@" >"$data/$log.log" 2>&1 </dev/null &
  started+=($!)
}

lives() {
  local number
  for number in "${started[@]}"; do
    if kill -0 "$number" 2>/dev/null; then return 0; fi
  done
  return 1
}

clear_away() {
  trap '' INT TERM
  if [ ${#started[@]} -gt 0 ]; then
    kill "${started[@]}" 2>/dev/null || true
    for _ in $(seq 100); do
      lives || break
      sleep 0.1
    done
    # Only who is left: the number of one that has ended may be somebody else's.
    for number in "${started[@]}"; do
      if kill -0 "$number" 2>/dev/null; then kill -KILL "$number" 2>/dev/null || true; fi
    done
    wait
  fi
  rm -rf "$data"
}
trap clear_away EXIT
trap 'exit 1' INT TERM

needs() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || cannot "$tool is missing on this machine"
  done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Waits until somebody listens there.
until_open() {
  for _ in $(seq 600); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
    lives || break
    sleep 0.1
  done
  tail -n 5 "$data"/*.log >&2 || true
  cannot "nobody listens at port $1"
}

# Whether exactly these packages are in a folder already; if not, it is made anew.
has() {
  local folder="$1"
  shift
  if [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ]; then return 0; fi
  rm -rf "$folder"
  mkdir -p "$folder"
  say "installing $* into ${folder#"$PWD/"}"
  return 1
}

# Packages of PyPI, with a Python of their own.
from_pypi() {
  local folder="$installed/$1"
  shift
  needs python3
  if has "$folder" "$@"; then return; fi
  python3 -m venv "$folder" >&2 || cannot "python3-venv is missing on this machine"
  "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || cannot "pip could not install $*"
  echo "$*" >"$folder/packages"
}

# Packages of npm, with a Node of their own: Debian's is older than what they ask for.
from_npm() {
  local folder="$installed/$1" machine
  shift
  needs npm python3
  case "$(uname -m)" in
    x86_64) machine=x64 ;;
    aarch64) machine=arm64 ;;
    *) cannot "npm has no Node for $(uname -m)" ;;
  esac
  node="$folder/node_modules/node-linux-$machine/bin/node"
  if has "$folder" "$@"; then return; fi
  npm install --prefix "$folder" --no-audit --no-fund --ignore-scripts --loglevel=error "node-linux-$machine@22" "$@" >&2 ||
    cannot "npm could not install $*"
  echo "$*" >"$folder/packages"
}
