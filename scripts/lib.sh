# The virtual environments of quickstart, test and check. Sourced, not run.
#
# An environment is made once and reused until the Python, the requirements or the files that pin them change; a
# change installs on top, so it costs seconds. ROPETOOL_PYTHON and ROPETOOL_V4_PYTHON name interpreters to use instead.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { echo "ropetool: $*" >&2; }

# Print a Python of at least 3.10 that can make virtual environments.
base_python() {
  local found=${PYTHON:-python3}
  if ! "$found" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    say "$found is not Python 3.10 or newer; name one with PYTHON=python3.12"
    return 1
  fi
  if ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
    say "$found has no venv module; on Debian and Ubuntu: apt-get install python3-venv"
    return 1
  fi
  echo "$found"
}

# environment DIR NAME CONSTRAINTS ARGUMENT...: have DIR hold what `pip install ARGUMENT...` gives.
# NAME is that of this set of requirements, so that one environment can grow: first the package, then the tools.
environment() {
  local dir=$1 name=$2 stamp=$1/.$2 constraints=$3
  shift 3
  local python wanted
  python=$(base_python)
  wanted=$({ "$python" --version; echo "$root" "$@"; cat "$constraints" pyproject.toml; } | cksum)
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && "$dir/bin/python" -c '' 2>/dev/null; then
    return
  fi
  say "installing the $name into $dir (minutes the first time)"
  if [[ $("$dir/bin/python" --version 2>/dev/null) != "$("$python" --version)" ]]; then
    "$python" -m venv --clear "$dir"
  fi
  local install=("$dir/bin/python" -m pip install -qq)
  "${install[@]}" 'pip>=25.1' # the first with --group
  # First and alone: with the version stated pip takes a CPU build where one lies ready; a range would take the newest
  # release with its gigabytes of CUDA libraries.
  "${install[@]}" "$(grep '^torch==' "$constraints")"
  "${install[@]}" --constraint "$constraints" "$@"
  echo "$wanted" >"$stamp"
}

# Set $python to an interpreter that has ropetool and what verify needs.
use_package() {
  python=${ROPETOOL_PYTHON:-$root/.venv/bin/python}
  if [[ -z ${ROPETOOL_PYTHON:-} ]]; then
    environment .venv package constraints.txt --editable '.[verify]'
  fi
}

# The same, with the development tools.
use_tools() {
  use_package
  if [[ -z ${ROPETOOL_PYTHON:-} ]]; then
    environment .venv tools constraints.txt --group dev
  fi
}

# Export ROPETOOL_V4_PYTHON: an interpreter with transformers 4.57.
use_v4() {
  if [[ -z ${ROPETOOL_V4_PYTHON:-} ]]; then
    environment .venv-v4 oracle constraints-v4.txt torch transformers
  fi
  export ROPETOOL_V4_PYTHON=${ROPETOOL_V4_PYTHON:-$root/.venv-v4/bin/python}
}
