#!/usr/bin/env bash
# Runs all benches, those beside other lock clients included, and makes tables and charts of what they say: BENCHMARKS.md,
# benchmarks.svg and benchmarks-peers.svg. A complete run into docs also renews the README's table.
#
#   benches/run.sh [DIRECTORY]                      into docs by default; takes 40 minutes
#   benches/run.sh --quick [DIRECTORY]              a first look, in less than three minutes; only prints, unless there is a DIRECTORY
#   FAIRLOCK_BENCHES='queue peers' benches/run.sh --quick       some of them
#
# Each bench starts a private redis-server, unless FAIRLOCK_BENCH_URL names one. Nothing else should run at that time.
# Lock clients for Go run only where go is installed, those for Java where mvn is, and neither in a first look.
set -euo pipefail
if [[ ${1:-} == --quick ]]; then
    export FAIRLOCK_BENCH_QUICK=1
    shift
fi
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
targets=()
if [[ $# -gt 0 ]]; then
    mkdir -p "$1"
    targets=("$(realpath "$1")")
elif [[ ! ${FAIRLOCK_BENCH_QUICK:-} ]]; then
    targets=("$top/docs" "$top/README.md")
fi
cd "$top"
results=$(mktemp)

# A quorum's bench makes no figures.
all=$(sed -n '/^\[\[bench\]\]/{n;s/name = "\(.*\)"/\1/p}' Cargo.toml | grep -vxE 'table|quorum')
benches=${FAIRLOCK_BENCHES:-peers $all}

# All are built first, so that no compiler runs beside one.
cargo bench --no-run
[[ $benches != *peers* ]] || cargo build --release --locked --manifest-path benches/peers/Cargo.toml

export FAIRLOCK_BENCH_RESULTS=$results
for bench in $benches; do
    if [[ $bench == peers ]]; then
        cargo run --release --locked --manifest-path benches/peers/Cargo.toml -- --bench
    else
        cargo bench --bench "$bench"
    fi
    echo
done
cargo bench --bench table -- "$results" "${targets[@]}"
rm "$results"
[[ ${#targets[@]} == 0 ]] || echo "=> ${targets[*]}"
