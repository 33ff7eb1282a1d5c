#!/usr/bin/env bash
# Runs all benches, those beside other lock clients included, and makes the pages and charts of what they say:
# docs/BENCHMARKS.md, docs/benchmarks.svg, docs/benchmarks-peers.svg, benches/RESULTS.md, benches/results.tsv (the results
# themselves) and README's table.
#
#   benches/run.sh [DIRECTORY]                      into the repository by default, or below another directory; takes 40 minutes
#   benches/run.sh --quick [DIRECTORY]              a first look, in less than three minutes
#   benches/run.sh --from RESULTS [DIRECTORY]       makes them from the results of earlier runs, in seconds
#   FAIRLOCK_BENCHES='queue peers' benches/run.sh --quick       some of them
#
# A first look and a run of some benches only print, unless there is a DIRECTORY. To measure in pieces, give each its DIRECTORY,
# concatenate their results, and make the pages --from that; what was measured twice counts as it was measured last.
#
# Each bench starts a private redis-server, unless FAIRLOCK_BENCH_URL names one. Nothing else should run at that time.
# Lock clients for Go run only where go is installed, those for Java where mvn is, and neither in a first look.
set -euo pipefail
top=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
from=
case ${1:-} in
--quick)
    export FAIRLOCK_BENCH_QUICK=1
    shift
    ;;
--from)
    from=$(realpath "${2:?--from wants the results}")
    shift 2
    ;;
esac
root=()
if [[ $# -gt 0 ]]; then
    mkdir -p "$1"
    root=("$(realpath "$1")")
elif [[ $from || ! ${FAIRLOCK_BENCH_QUICK:-}${FAIRLOCK_BENCHES:-} ]]; then
    root=("$top")
fi
cd "$top"

if [[ $from ]]; then
    # Without the optimized build, which only measuring needs.
    cargo test --quiet -p fairlock --bench table -- "$from" "${root[@]}"
    echo "=> ${root[*]}"
    exit
fi

results=$(mktemp)
trap '[[ $? == 0 ]] || echo "failed; the results until then are in $results" >&2' EXIT

# A quorum's bench makes no figures.
all=$(sed -n '/^\[\[bench\]\]/{n;s/name = "\(.*\)"/\1/p}' Cargo.toml | grep -vxE 'table|quorum')
benches=${FAIRLOCK_BENCHES:-peers $all}

# All are built first, so that no compiler runs beside one.
cargo bench --no-run
[[ $benches != *peers* ]] || cargo build --release --locked --manifest-path benches/peers/Cargo.toml

cargo bench --bench table -- head >"$results"
export FAIRLOCK_BENCH_RESULTS=$results
for bench in $benches; do
    if [[ $bench == peers ]]; then
        cargo run --release --locked --manifest-path benches/peers/Cargo.toml -- --bench
    else
        cargo bench --bench "$bench"
    fi
    echo
done
cargo bench --bench table -- "$results" "${root[@]}"
rm "$results"
[[ ${#root[@]} == 0 ]] || echo "=> ${root[*]}"
