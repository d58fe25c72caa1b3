#!/bin/sh
# Checks the Metal kernels on an NVIDIA GPU (docs/kernels/testing.md, "On an NVIDIA GPU").
#   tools/gpu_check.sh pack         here: build/gpu_check/gpu_check.tar, all that the other machine lacks
#   tools/gpu_check.sh run [OUT]    there, offline: tests and compute-sanitizer; the report is in OUT
#   tools/gpu_check.sh bench [OUT]  there: times of the kernels, beside PyTorch's; JSON lines in OUT
# PYTHON runs it; TARGET_PYTHON, python3.12 by default, has the version of the other machine's Python.
set -e
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m tools.gpu_check "$@"
