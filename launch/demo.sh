#!/usr/bin/env bash
# Both libraries at work, from a fresh clone with nothing but a Python: bash launch/demo.sh
#
# Prices the shipped sample runs and draws the figures; then trains a tiny actor and a memory for it, and says how much
# of what a summary lost the memory gives back. DEMO=cost or DEMO=memory runs one half.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh
ensure_environment

samples=costmodel_jax/samples
out=out/demo
mkdir -p "$out"
# Programs compiled for the table serve the figures too, and the next time.
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$VIRTUAL_ENV/.jax}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:-0}"

if [[ "${DEMO:-all}" != memory ]]; then
  echo "Sixteen synthetic runs, with lengths as real coding agents have them, under ten context policies and four cache rules:"
  echo
  costmodel price "$samples" --runs 5 --csv "$out/rows.csv"
  echo
  costmodel plot "$samples" --out "$out"
  cat <<END

The table above is in $out/rows.csv, one row per run; every figure is a PNG with its numbers beside it as CSV.
Now your own logs (Claude Code, Codex CLI, and others: see 'costmodel import --help'):

  source .venv/bin/activate
  costmodel price PATH/TO/LOGS
  costmodel plot PATH/TO/LOGS --out $out/mine
  costmodel explain PATH/TO/LOGS --policy compact:100k
END
fi

if [[ "${DEMO:-all}" != cost ]]; then
  cat <<END

The ledger: eight facts in a history, two of them in its summary; eight soft rows are to carry the others.
A tiny actor learns to answer from its context and is frozen; then its memory network is trained. Minutes.

END
  ledger=(configs/ledger_cpu.py --folder "$out/train" --actor.folder "$out/actors")
  python -m launch.train "${ledger[@]}"
  echo
  python -m launch.evaluate "${ledger[@]}"
fi
