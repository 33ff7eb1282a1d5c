//! One page of SCAN.

use redis::Value;

use super::lanes::Lanes;
use crate::store::StoreFault;

/// How many keys the server looks at for one page. It is kept from other clients for that long.
const PAGE: u32 = 512;

impl Lanes {
    /// The cursor of the next page (0 after the last page), and the keys of hashes that match.
    pub(in crate::store) fn scan(
        &self,
        cursor: u64,
        pattern: &str,
    ) -> Result<(u64, Vec<String>), StoreFault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(pattern)
            .arg("COUNT")
            .arg(PAGE)
            .arg("TYPE")
            .arg("hash");
        let timeouts = self.node.command_timeout * 2;
        let page = self.request(&scan, self.node.clock.now() + timeouts);
        let page = page.map_err(|fault| fault.of_command("SCAN", "which a list of locks needs"));
        self.node.outcome(page.and_then(parse_page))
    }
}

/// The reply to SCAN: the next cursor, and keys.
pub(super) fn parse_page(reply: Value) -> Result<(u64, Vec<String>), StoreFault> {
    let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(reply).map_err(|error| {
        let error = error.to_string();
        StoreFault::protocol(format!(
            "expected a cursor and keys as the reply to SCAN: {error:.100}"
        ))
    })?;
    // The keys of locks are UTF-8. Any other key is not one.
    let keys = keys
        .into_iter()
        .filter_map(|key| String::from_utf8(key).ok());
    Ok((next, keys.collect()))
}
