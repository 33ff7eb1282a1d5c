#!/usr/bin/env bash
# Runs the tests, with a redis-server.
#
#   tests/run.sh [cargo test's arguments]   runs the tests of the library and of the command line, then names the
#                                           slowest. `--test topologies`, `soak` and `partitions` run when named
#   tests/run.sh --server                   prints the path of the server's binary, and no more
#   tests/run.sh --need [tools]             installs what is missing of these tools, and no more
#
# As root on Debian, it installs what is missing. Elsewhere it prints the command that does.
#
# FAIRLOCK_TEST_SERVER may name the binary of another server: Redis 6.2 or later, or Valkey. FAIRLOCK_TEST_RAN may name a
# file, which then gets a line for each target that ran, each test, and each note of a test about the server.
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

# The package that has a tool, by the program that installs packages. Debian's package redis-server would start a
# daemon besides.
packages='
tool          apt-get      dnf         apk         pacman      brew
redis-server  redis-tools  redis       redis       redis       redis
strace        strace       strace      strace      strace      -
ps            procps       procps-ng   procps      procps-ng   -
openssl       openssl      openssl     openssl     openssl     openssl
ip            iproute2     iproute     iproute2    iproute2    -
unshare       util-linux   util-linux  util-linux  util-linux  -
setpriv       util-linux   util-linux  setpriv     util-linux  -
mount         mount        util-linux  util-linux  util-linux  -
'

# $1 the program that installs packages, $2... tools
packages_of() {
    awk -v installer="$1" -v tools=" ${*:2} " '
        $1 == "tool" { for (i = 2; i <= NF; i++) if ($i == installer) column = i }
        column && index(tools, " " $1 " ") && !seen[$column]++ { print $column }' <<<"$packages" | paste -sd ' '
}

has() {
    if [[ $1 == redis-server ]]; then
        find_server
    else
        command -v "$1"
    fi >/dev/null
}

# Installs what is missing of these tools, or says how.
need() {
    local tool installer missing=() wanted
    for tool in "$@"; do
        has "$tool" || missing+=("$tool")
    done
    ((${#missing[@]})) || return 0
    for installer in apt-get dnf apk pacman brew none; do
        ! command -v "$installer" >/dev/null || break
    done
    wanted=$(packages_of "$installer" "${missing[@]}")
    [[ " $wanted " != *" - "* ]] || installer=none
    if [[ $EUID -eq 0 && -f /etc/debian_version && $installer == apt-get ]]; then
        echo "run.sh: not here: ${missing[*]}; installing $wanted" >&2
        {
            DEBIAN_FRONTEND=noninteractive apt-get update -q
            # shellcheck disable=SC2086 # One word for each package.
            DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $wanted
        } >&2
        return
    fi
    echo "run.sh: not here: ${missing[*]}. Install what is missing and try again:" >&2
    case $installer in
        apt-get) echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $wanted" ;;
        dnf) echo "  sudo dnf install -y $wanted" ;;
        apk) echo "  sudo apk add $wanted" ;;
        pacman) echo "  sudo pacman -S --noconfirm $wanted" ;;
        brew) echo "  brew install $wanted" ;;
        *) echo "  (the packages of this system that have it; redis-server from version 6.2)" ;;
    esac >&2
    exit 1
}

if [[ ${1-} == --need ]]; then
    need "${@:2}"
    exit
fi

# `it` counts system calls, `cli` looks for processes, TLS needs certificates, and `partitions` makes network
# namespaces. Without a target's name, `it` and `cli` run.
case " $* " in
    *" --test it "*) need strace ;;&
    *" --test cli "*) need ps openssl ;;&
    *" --test topologies "*) need openssl ;;&
    *" --test partitions "*) need ip unshare setpriv mount ;;&
    *" --server "* | *" --lib "* | *" --test "*) ;;
    *) need strace ps openssl ;;
esac

server=${FAIRLOCK_TEST_SERVER-}
if [[ -n $server ]] && ! is_server "$server"; then
    echo "run.sh: FAIRLOCK_TEST_SERVER names no server: $server" >&2
    exit 1
fi
[[ -n $server ]] || server=$(find_server) || {
    need redis-server
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
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-16}

# Both packages, unless the arguments choose one. Arguments behind -- are for the tests.
packages=--workspace
for argument in "$@"; do
    case $argument in
        --) break ;;
        -p | -p?* | --package | --package=* | --workspace | --all) packages= ;;
    esac
done

# In the environment of each process that the tests start, and of no other. The tests remove FAIRLOCK_ variables.
mark=TESTS_OF_FAIRLOCK=$$.$RANDOM.$RANDOM

# Ends what the tests have left, and says what it was. A process that ends at this moment is not left.
no_process_is_left() {
    local deadline=$((SECONDS + 10)) pid left
    # grep's status says whether it could read each file.
    while left=$(grep -lzsxF "$mark" /proc/[0-9]*/environ) || true && [[ -n $left ]]; do
        if ((SECONDS >= deadline)); then
            echo "run.sh: the tests have left these processes:"
            for pid in $(cut -d / -f 3 <<<"$left"); do
                # The number, the parent's, and the state: T is stopped.
                awk '$1 ~ /^(Pid|PPid|State):/ { printf "  %s %s", $1, $2 } END { print "" }' "/proc/$pid/status"
                tr '\0' ' ' <"/proc/$pid/cmdline" | sed 's/^/    /'
                echo
                kill -KILL "$pid"
            done
            return 1
        fi
        sleep 0.1
    done >&2 2>/dev/null
}

status=0
SECONDS=0
run() {
    if [[ -z ${FAIRLOCK_TEST_RAN-} ]]; then
        env "$mark" cargo test --all-features --no-fail-fast "$@" || status=$?
        return
    fi
    env "$mark" cargo test --all-features --no-fail-fast "$@" 2>&1 | tee "$output" || status=$?
    # Only targets with servers. Their names are those of their folders.
    awk -v server="$("$server" --version | sed 's/ .* v=/ /; s/ sha=.*//')" '
        $1 == "Running" { n = split($2, path, "/"); target = path[n] == "main.rs" ? path[n - 1] : "" }
        target && /^test .* \.\.\. ok$/ { print server "\tpassed\t" target "\t" $2 }
        target && /^test .* \.\.\. FAILED$/ { print server "\tfailed\t" target "\t" $2 }
        target && /^test result:/ { print server "\tran\t" target "\t" $4 "\t" $12 }
        ' "$output" >>"$FAIRLOCK_TEST_RAN"
}
if (($#)); then
    run $packages "$@"
else
    # The simulators are among the library's own tests. Optimised, those take a third of the time, which is more than
    # their compilation takes longer. The others mostly wait.
    run --workspace --exclude fairlock-tests --lib --config profile.test.package.fairlock.opt-level=1
    run --workspace --bins --test it --test cli --example unit_test
    run --workspace --doc
fi

if [[ -s $times ]]; then
    echo "the slowest tests, in ms:"
    # A test with several servers has a line for each; the longest is the test's.
    # awk reads to the end, since a sort whose reader is gone would fail the script.
    sort -rn "$times" | awk '!seen[$2]++ && n++ < 10 { printf "%8d  %s\n", $1, $2 }'
fi
no_process_is_left || status=1
echo "run.sh: $SECONDS s in all, cargo's status $status"
exit "$status"
