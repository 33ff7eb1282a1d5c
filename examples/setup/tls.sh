#!/usr/bin/env bash
# A server with TLS on this host, for as long as a command runs. Needs openssl, and a server that was built with TLS.
#
#   examples/setup/tls.sh cargo run --features tls --example hello    runs the command with REDIS_URL
#   examples/setup/tls.sh                                             prints the URL and runs until Ctrl-C
#
# The command trusts the server's authority through SSL_CERT_FILE. A program of your own can pass it to the builder:
# docs/SERVERS.md.
source "$(dirname "${BASH_SOURCE[0]}")/servers.bash"

openssl=$(command -v openssl) || complain "no openssl here"
# Makes a key and a certificate: name, subject, how it is signed, and its extensions.
certificate() {
    local name=$1 subject=$2
    shift 2
    "$openssl" req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "$subject" \
        -keyout "$dir/$name.key" -out "$dir/$name.crt" "$@" 2>"$dir/openssl.log" ||
        complain "openssl cannot make a certificate: $(cat "$dir/openssl.log")"
}
certificate authority /CN=authority -addext keyUsage=keyCertSign
certificate server /CN=localhost -CA "$dir/authority.crt" -CAkey "$dir/authority.key" \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE

cli_options=(--tls --cacert "$dir/authority.crt")
start_redis --port 0 --tls-port %PORT% --tls-auth-clients no --tls-ca-cert-file "$dir/authority.crt" \
    --tls-cert-file "$dir/server.crt" --tls-key-file "$dir/server.key"

export SSL_CERT_FILE=$dir/authority.crt
run_with "rediss://localhost:$port" "$@"
