#!/usr/bin/env bash
# Runs the tests, with a redis-server.
#
#   tests/run.sh [cargo test's arguments]   runs the tests of the library and of the command line, then names the
#                                           slowest. `--test topologies`, `soak` and `partitions` run when named
#   tests/run.sh --server                   prints the path of the server's binary, and no more
#
# FAIRLOCK_TEST_SERVER may name the binary of another server: Redis 6.2 or later, or Valkey. FAIRLOCK_TEST_RAN may name a
# file, which then gets a line for each target that ran, each test that failed, and each note of a test about the server.
#
# Every test starts a server of its own; one that already runs on this machine is never spoken to.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The binary acts by the name it is called by: Debian's redis-tools installs the server under the
# name of one of its tools.
is_server() {
    (exec -a redis-server "$1" --version) 2>/dev/null | grep -qE '^(Redis|Valkey) server'
}

find_server() {
    local name path
    for name in redis-server redis-check-rdb; do
        path=$(command -v "$name") && is_server "$path" && echo "$path" && return
    done
    return 1
}

install_server() {
    if [[ $EUID -eq 0 && -f /etc/debian_version ]] && command -v apt-get >/dev/null; then
        echo "run.sh: no redis-server here; installing redis-tools" >&2
        # The package redis-server would start a daemon besides.
        {
            DEBIAN_FRONTEND=noninteractive apt-get update -q
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends redis-tools
        } >&2
        return
    fi
    echo "run.sh: no redis-server here. Install it and try again:" >&2
    if command -v apt-get >/dev/null; then
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends redis-tools"
    elif command -v dnf >/dev/null; then
        echo "  sudo dnf install -y redis"
    elif command -v apk >/dev/null; then
        echo "  sudo apk add redis"
    elif command -v pacman >/dev/null; then
        echo "  sudo pacman -S --noconfirm redis"
    elif command -v brew >/dev/null; then
        echo "  brew install redis"
    else
        echo "  (the package of this system that has redis-server, version 6.2 or later)"
    fi >&2
    exit 1
}

# The target partitions makes network namespaces: `ip` comes with iproute2, the rest with util-linux.
install_network_tools() {
    local tool missing=
    for tool in ip unshare setpriv mount; do
        command -v "$tool" >/dev/null || missing+=" $tool"
    done
    [[ -n $missing ]] || return 0
    if [[ $EUID -eq 0 && -f /etc/debian_version ]] && command -v apt-get >/dev/null; then
        echo "run.sh: not here:$missing; installing iproute2, util-linux and mount" >&2
        {
            DEBIAN_FRONTEND=noninteractive apt-get update -q
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends iproute2 util-linux mount
        } >&2
        return
    fi
    echo "run.sh: not here:$missing. Install them and try again:" >&2
    if command -v apt-get >/dev/null; then
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends iproute2 util-linux mount"
    elif command -v dnf >/dev/null; then
        echo "  sudo dnf install -y iproute util-linux"
    elif command -v apk >/dev/null; then
        echo "  sudo apk add iproute2 util-linux setpriv"
    elif command -v pacman >/dev/null; then
        echo "  sudo pacman -S --noconfirm iproute2 util-linux"
    else
        echo "  (the packages of a Linux that have them; no other system has network namespaces)"
    fi >&2
    exit 1
}

# The target `it` counts system calls.
install_strace() {
    ! command -v strace >/dev/null || return 0
    if [[ $EUID -eq 0 && -f /etc/debian_version ]] && command -v apt-get >/dev/null; then
        echo "run.sh: no strace here; installing it" >&2
        {
            DEBIAN_FRONTEND=noninteractive apt-get update -q
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends strace
        } >&2
        return
    fi
    echo "run.sh: no strace here. Install the package of this name and try again" >&2
    exit 1
}

case " $* " in
    *" --server "* | *" --lib "*) ;;
    *" --test it "*) install_strace ;;
    *" --test partitions "*) install_network_tools ;;
    *" --test "*) ;;
    *) install_strace ;;
esac

server=${FAIRLOCK_TEST_SERVER-}
if [[ -n $server ]] && ! is_server "$server"; then
    echo "run.sh: FAIRLOCK_TEST_SERVER names no server: $server" >&2
    exit 1
fi
[[ -n $server ]] || server=$(find_server) || {
    install_server
    server=$(find_server) || {
        echo "run.sh: installed, and still no redis-server on PATH" >&2
        exit 1
    }
}

# Others are given a path that acts as the server however it is called.
if [[ $(basename "$server") != redis-server ]]; then
    links=${CARGO_TARGET_DIR:-target}/server
    mkdir -p "$links"
    ln -sfn "$server" "$links/redis-server"
    server=$(cd "$links" && pwd)/redis-server
fi

if [[ ${1-} == --server ]]; then
    echo "$server"
    exit
fi

times=$(mktemp)
output=$(mktemp)
trap 'rm -f "$times" "$output"' EXIT
export FAIRLOCK_TEST_SERVER=$server FAIRLOCK_TEST_TIMES=$times
# Most tests wait for most of their time, so there are more of them than cores.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-12}

# Both packages, unless the arguments choose one. Arguments behind -- are for the tests.
packages=--workspace
for argument in "$@"; do
    case $argument in
        --) break ;;
        -p | -p?* | --package | --package=* | --workspace | --all) packages= ;;
    esac
done

status=0
SECONDS=0
run() {
    if [[ -z ${FAIRLOCK_TEST_RAN-} ]]; then
        cargo test --all-features --no-fail-fast "$@" || status=$?
        return
    fi
    cargo test --all-features --no-fail-fast "$@" 2>&1 | tee "$output" || status=$?
    # Only targets with servers. Their names are those of their folders.
    awk -v server="$("$server" --version | sed 's/ .* v=/ /; s/ sha=.*//')" '
        $1 == "Running" { n = split($2, path, "/"); target = path[n] == "main.rs" ? path[n - 1] : "" }
        target && /^test .* \.\.\. FAILED$/ { print server "\tfailed\t" target "\t" $2 }
        target && /^test result:/ { print server "\tran\t" target "\t" $4 "\t" $12 }
        ' "$output" >>"$FAIRLOCK_TEST_RAN"
}
if (($#)); then
    run $packages "$@"
else
    # The simulators are among the library's own tests. Optimised, those take a third of the time, which is more than
    # their compilation takes longer. The others mostly wait.
    run --workspace --lib --config profile.test.package.fairlock.opt-level=1
    run --workspace --bins --test it --test cli --example unit_test
    run --workspace --doc
fi

if [[ -s $times ]]; then
    echo "the slowest tests, in ms:"
    # A test with several servers has a line for each; the longest is the test's.
    # awk reads to the end, since a sort whose reader is gone would fail the script.
    sort -rn "$times" | awk '!seen[$2]++ && n++ < 10 { printf "%8d  %s\n", $1, $2 }'
fi
echo "run.sh: $SECONDS s in all, cargo's status $status"
exit "$status"
