//! A lock as bare as can be: a connection that does SET NX PX and a compare-and-delete script, which is the least
//! that any lock on Redis can do.

use redis::Connection;

use crate::support::bare_connection;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const TOKEN: &str = "67e5504410b1426f9247bb680e5fe0c8";

pub(crate) struct Floor {
    connection: Connection,
    sha: String,
    key: String,
}

impl Floor {
    pub(crate) fn new(url: &str, key: &str) -> Floor {
        let mut connection = bare_connection(url);
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(COMPARE_AND_DELETE)
            .query(&mut connection)
            .expect("the server takes scripts");
        Floor { connection, sha, key: key.to_owned() }
    }

    pub(crate) fn cycle(&mut self) {
        let taken: bool = redis::cmd("SET")
            .arg(&self.key)
            .arg(TOKEN)
            .arg("NX")
            .arg("PX")
            .arg(10_000)
            .query(&mut self.connection)
            .expect("SET is answered");
        let released: bool = redis::cmd("EVALSHA")
            .arg(&self.sha)
            .arg(1)
            .arg(&self.key)
            .arg(TOKEN)
            .query(&mut self.connection)
            .expect("EVALSHA is answered");
        assert!(taken && released, "somebody else uses {}", self.key);
    }
}
