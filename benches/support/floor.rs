//! A lock as bare as can be: a connection that does SET NX PX and a compare-and-delete script,
//! which is the least that any lock on Redis can do.

use redis::Connection;

use crate::support::bare_connection;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
pub(crate) const TOKEN: &str = "67e5504410b1426f9247bb680e5fe0c8";

pub(crate) struct Floor {
    connection: Connection,
    sha: String,
    key: String,
}

impl Floor {
    pub(crate) fn new(url: &str, key: &str) -> Floor {
        let mut connection = bare_connection(url);
        let sha = load(&mut connection);
        Floor {
            connection,
            sha,
            key: key.to_owned(),
        }
    }

    pub(crate) fn cycle(&mut self) {
        let taken = take(&mut self.connection, &self.key);
        let released = release(&mut self.connection, &self.sha, &self.key);
        assert!(taken && released, "somebody else uses {}", self.key);
    }
}

/// Makes the script known to the server; answers what to call it by.
pub(crate) fn load(connection: &mut Connection) -> String {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(COMPARE_AND_DELETE)
        .query(connection)
        .expect("the server takes scripts")
}

/// Whether nobody else had it.
pub(crate) fn take(connection: &mut Connection, key: &str) -> bool {
    let mut set = redis::cmd("SET");
    set.arg(key)
        .arg(TOKEN)
        .arg("NX")
        .arg("PX")
        .arg(10_000)
        .query(connection)
        .expect("SET is answered")
}

/// Whether it was still held.
pub(crate) fn release(connection: &mut Connection, sha: &str, key: &str) -> bool {
    let mut evalsha = redis::cmd("EVALSHA");
    evalsha
        .arg(sha)
        .arg(1)
        .arg(key)
        .arg(TOKEN)
        .query(connection)
        .expect("EVALSHA is answered")
}
