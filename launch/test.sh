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
# One worker per core: compiling the programs under test, most of the time, uses one.
python -m pytest -n auto --dist worksteal "$@"
