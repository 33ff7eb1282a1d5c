#!/usr/bin/env bash
# A master, two replicas and three sentinels on this host, for as long as a command runs.
#
#   examples/setup/sentinel.sh cargo run --example worker_pool    runs the command with REDIS_URL
#   examples/setup/sentinel.sh                                    prints the URL and runs until Ctrl-C
#
# docs/SERVERS.md says when to choose this, and how to set it up for production.
source "$(dirname "${BASH_SOURCE[0]}")/servers.bash"

# A master that has lost its replicas stops granting locks after a second or two.
start_redis --min-replicas-to-write 1 --min-replicas-max-lag 1 --repl-diskless-sync-delay 0
master=$port
for replica in 1 2; do
    start_redis --replicaof 127.0.0.1 "$master" --min-replicas-to-write 1 --min-replicas-max-lag 1 \
        --repl-diskless-sync-delay 0
done
await "both replicas are in sync" says "$master" '^connected_slaves:2' INFO replication

hosts=
for sentinel in 1 2 3; do
    start "sentinel monitor mymaster 127.0.0.1 $master 2
sentinel down-after-milliseconds mymaster 1000
sentinel failover-timeout mymaster 10000" --sentinel --port %PORT%
    hosts+=${hosts:+,}127.0.0.1:$port
done
for sentinel in ${hosts//,/ }; do
    await "the sentinels know each other" says "${sentinel#*:}" '^OK 3 usable' SENTINEL CKQUORUM mymaster
done

run_with "redis-sentinel://$hosts/mymaster" "$@"
