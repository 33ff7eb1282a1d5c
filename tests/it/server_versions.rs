//! What older servers lack, for the table in docs/SERVERS.md. On Redis alone, since the in-memory
//! store has one version.

use crate::support::{Server, is_redis_62, notes::lacks};

struct Feature {
    name: &'static str,
    /// What is done on a server without it.
    instead: &'static str,
    is_in: fn(&Server) -> bool,
}

const FEATURES: [Feature; 2] = [
    Feature {
        name: "`redis.acl_check_cmd`",
        instead: "rights are tried on a key beside the lock; some show only when a thread waits",
        is_in: |server| {
            let script = "return redis.acl_check_cmd and 1 or 0";
            server.query::<i64>(&["EVAL", script, "0"]) == 1
        },
    },
    Feature {
        name: "codes of errors in scripts",
        instead: "they are read from the text",
        is_in: |server| {
            let _: () = server.query(&["SET", "a string", "1"]);
            let script = "return redis.call('LPUSH', KEYS[1], 1)";
            let error = server.try_query::<()>(&["EVAL", script, "1", "a string"]);
            error.expect_err("it is no list").code() == Some("WRONGTYPE")
        },
    },
];

#[test]
fn what_a_server_lacks_is_noted() {
    let server = Server::start();
    let lacking = FEATURES.iter().filter(|feature| !(feature.is_in)(&server));
    let noted = lacking.map(|feature| lacks(feature.name, feature.instead));
    let expected = if is_redis_62() { FEATURES.len() } else { 0 };
    assert_eq!(noted.count(), expected);
}
