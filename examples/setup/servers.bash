# The set-up scripts of this directory share these functions. They source it; it does nothing by itself.
#
# The servers listen on 127.0.0.1 alone, keep nothing, and end with the script. The binary of the server is
# redis-server, valkey-server or that of $SETUP_SERVER.

set -euo pipefail

dir=$(mktemp -d)
pids=()

# Ends all servers and removes their files.
clean_up() {
    local status=$?
    trap - EXIT INT TERM
    # The shell would report each server that it ends.
    exec 2>/dev/null
    ((${#pids[@]})) && kill -9 "${pids[@]}"
    wait
    rm -rf "$dir"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

complain() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Debian's redis-tools has the server under the name redis-check-rdb: it acts by the name that starts it.
find_server() {
    local name path
    for name in "${SETUP_SERVER:-redis-server}" redis-server valkey-server redis-check-rdb; do
        path=$(command -v "$name") || continue
        (exec -a redis-server "$path" --version) 2>/dev/null | grep -qE '^(Redis|Valkey) server' && echo "$path" && return
    done
    complain "no redis-server here; on Debian it is in redis-tools"
}
server=$(find_server)
cli=$(command -v redis-cli || command -v valkey-cli) || complain "no redis-cli here; on Debian it is in redis-tools"

ask() {
    local port=$1
    shift
    "$cli" -p "$port" "${cli_options[@]}" "$@"
}
cli_options=()

# Waits until a command succeeds, for at most a minute.
await() {
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@"; do
        ((SECONDS < end)) || complain "this did not happen within a minute: $what"
        sleep 0.1
    done
}

answers() {
    ask "$1" PING 2>/dev/null | grep -q PONG
}

# Whether a server says this in its INFO or in another answer.
says() {
    local port=$1 text=$2
    shift 2
    ask "$port" "$@" 2>/dev/null | tr -d '\r' | grep -qE "$text"
}

# A port below those that the kernel gives to clients, and so is the port 10000 above it, for a cluster's bus.
free_port() {
    local port
    while true; do
        port=$((12000 + RANDOM % 10000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# Starts a server on a free port with these arguments, and sets `port` when it answers. Each %PORT% is the port. A
# first argument without a dash is the text of a configuration file.
start() {
    local config=() arguments pid attempt own
    if [[ ${1-} != -* && -n ${1-} ]]; then
        config=("$1")
        shift
    fi
    for attempt in 1 2 3 4 5; do
        port=$(free_port)
        own=$dir/$port
        mkdir "$own"
        arguments=("${@//%PORT%/$port}")
        if ((${#config[@]})); then
            echo "${config[0]}" >"$own/config"
            arguments=("$own/config" "${arguments[@]}")
        elif [[ " $* " != *%PORT%* ]]; then
            arguments=(--port "$port" "${arguments[@]}")
        fi
        (exec -a redis-server "$server" "${arguments[@]}" --bind 127.0.0.1 --dir "$own" >"$own/log" 2>&1) &
        pid=$!
        while kill -0 "$pid" 2>/dev/null; do
            if answers "$port"; then
                pids+=("$pid")
                return
            fi
            sleep 0.05
        done
        # Somebody else may have taken the port.
    done
    complain "the server does not start: $(tail -n 3 "$own/log")"
}

# A server that stores nothing.
start_redis() {
    start --save '' --appendonly no "$@"
}

# Prints the URL, and runs the command with it. Without a command, waits for Ctrl-C.
run_with() {
    local url=$1
    shift
    echo "REDIS_URL='$url'"
    export REDIS_URL=$url
    if (($#)); then
        "$@"
    else
        echo "Press Ctrl-C to end the servers." >&2
        wait
    fi
}
