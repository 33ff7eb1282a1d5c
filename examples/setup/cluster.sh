#!/usr/bin/env bash
# A cluster of three masters and three replicas on this host, for as long as a command runs.
#
#   examples/setup/cluster.sh cargo run --example worker_pool    runs the command with REDIS_URL
#   examples/setup/cluster.sh                                    prints the URL and runs until Ctrl-C
#
# docs/SERVERS.md says when to choose this, and how to set it up for production.
source "$(dirname "${BASH_SOURCE[0]}")/servers.bash"

nodes=()
for node in 1 2 3 4 5 6; do
    # The shards that are up go on when another one is down.
    start_redis --cluster-enabled yes --cluster-node-timeout 2000 --cluster-require-full-coverage no \
        --repl-diskless-sync-delay 0
    nodes+=("127.0.0.1:$port")
done
"$cli" --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes >"$dir/create" ||
    complain "redis-cli cannot create the cluster: $(tail -n 3 "$dir/create")"
for node in "${nodes[@]}"; do
    await "each node knows the cluster" says "${node#*:}" '^cluster_state:ok' CLUSTER INFO
done

hosts=$(IFS=,; echo "${nodes[*]}")
run_with "redis-cluster://$hosts" "$@"
