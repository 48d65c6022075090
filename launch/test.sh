#!/usr/bin/env bash
# The whole test suite, with linter and type checker, from a fresh clone: bash launch/test.sh [pytest options]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
ensure_environment test
ensure_smollm2

ruff check .
ruff format --check .
mypy
tests() { # one worker per core: compiling the programs under test, most of the time, uses one
  python -m pytest -n auto --dist worksteal "$@"
}

if (($#)); then
  tests "$@"
  exit
fi
# In several runs: a process that has compiled thousands of programs aborts inside XLA.
models=(tests/actor/test_parity.py tests/actor/test_interface.py)
networks=(tests/data tests/evaluation tests/ledger tests/memory tests/objective tests/training)
tests --ignore=tests/actor "${networks[@]/#/--ignore=}" tests -m "not slow"
tests "${networks[@]}" -m "not slow"
tests "${models[@]}" -m "not slow"
tests "${models[@]/#/--ignore=}" tests/actor -m "not slow"
tests tests -m slow
