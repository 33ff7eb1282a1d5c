#!/usr/bin/env bash
# Three independent masters on this host, for as long as a command runs. A majority of them decides.
#
#   examples/setup/quorum.sh cargo run --example hello    runs the command with REDIS_URL: three URLs with spaces between
#   examples/setup/quorum.sh                              prints the URLs and runs until Ctrl-C
#
# docs/SERVERS.md says when to choose this, and how to set it up for production.
source "$(dirname "${BASH_SOURCE[0]}")/servers.bash"

urls=()
for member in 1 2 3; do
    start_redis
    urls+=("redis://127.0.0.1:$port")
done
# A server that restarted within the last TTL may have forgotten locks that are held, so no manager counts on it. The
# TTL of the examples is the default, 10 s.
echo "waiting until the servers are older than a TTL" >&2
for url in "${urls[@]}"; do
    await "the server is older than a TTL" says "${url##*:}" '^uptime_in_seconds:(1[1-9]|[2-9].)' INFO server
done

run_with "${urls[*]}" "$@"
