#!/usr/bin/env bash
# Runs all benches, those beside other crates included, and makes a table and a chart of what they say: BENCHMARKS.md,
# benchmarks.svg and benchmarks-peers.svg.
#
#   benches/run.sh [DIRECTORY]                                  into docs by default; takes 20 minutes
#   FAIRLOCK_BENCH_ROUNDS=1 benches/run.sh /tmp/tried           to try it: one round of each
#   FAIRLOCK_BENCHES='queue peers' benches/run.sh /tmp/tried    some of them
#
# Each bench starts a private redis-server, unless FAIRLOCK_BENCH_URL names one. Nothing else should run at that time.
set -euo pipefail
directory=$(realpath "${1:-$(dirname "${BASH_SOURCE[0]}")/../docs}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p "$directory"
results=$(mktemp)
trap 'rm -f "$results"' EXIT

benches=${FAIRLOCK_BENCHES:-peers uncontended handoff queue waiting renewal link permits}

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
cargo bench --bench table -- "$results" "$directory"
echo "=> $directory/BENCHMARKS.md and $directory/benchmarks.svg"
