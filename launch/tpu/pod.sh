#!/usr/bin/env bash
# A Cloud TPU pod from one terminal: make it, copy this checkout to its workers, run a command on all of them at once.
#
#   export TPU=remory ZONE=us-east5-a TYPE=v5litepod-32 VERSION=v2-alpha-tpuv5-lite
#   launch/tpu/pod.sh create
#   launch/tpu/pod.sh copy        # and again after every change
#   launch/tpu/pod.sh run python -m launch.train configs/qwen3_8b.py --cluster.auto --folder /shared/runs
#   launch/tpu/pod.sh delete
#
# Model, data and --folder must lie on a file system that all workers share (a mounted bucket or file server). A run that
# was killed goes on when the same command is given again. What a pod must hold is known before one is rented: see
# `python -m launch.compile_check --help`.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "launch/tpu/$(basename "$0")"
  exit "${1:-0}"
}

need() { # stop where a variable is not set, naming it
  local name
  for name in "$@"; do
    if [[ -z "${!name:-}" ]]; then
      echo "error: $name is not set; see launch/tpu/pod.sh help" >&2
      exit 1
    fi
  done
}

everywhere() { # a command on every worker
  gcloud compute tpus tpu-vm ssh "$TPU" --zone "$ZONE" --worker all --command "$1"
}

action=${1:-help}
shift || true
case "$action" in
  create)
    need TPU ZONE TYPE VERSION
    gcloud compute tpus tpu-vm create "$TPU" --zone "$ZONE" --accelerator-type "$TYPE" --version "$VERSION" "$@"
    ;;
  copy)
    need TPU ZONE
    archive=$(mktemp --suffix .tar.gz)
    trap 'rm -f "$archive"' EXIT
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create --gzip --file "$archive"
    gcloud compute tpus tpu-vm scp "$archive" "$TPU:remory.tar.gz" --zone "$ZONE" --worker all
    everywhere 'mkdir -p remory && tar -xzf remory.tar.gz -C remory && cd remory && source launch/environment.sh && ensure_environment tpu'
    ;;
  run)
    need TPU ZONE
    if (($# == 0)); then usage 1 >&2; fi
    everywhere "cd remory && source .venv/bin/activate && $(printf '%q ' "$@")"
    ;;
  delete)
    need TPU ZONE
    gcloud compute tpus tpu-vm delete "$TPU" --zone "$ZONE" "$@"
    ;;
  help | -h | --help) usage ;;
  *)
    echo "error: $action is none of create, copy, run, delete, help" >&2
    exit 1
    ;;
esac
