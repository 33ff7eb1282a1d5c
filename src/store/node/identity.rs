//! Which nodes of a quorum are the same server. Two addresses may lead to one: `localhost` and
//! `127.0.0.1`, an alias, a virtual address that moved. It would have two votes.
//!
//! Redis makes up a `run_id` when it starts, and `INFO server` has it. So each new connection knows
//! which server it leads to, before anything else is sent over it.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::logging::Logger;

/// The servers that some nodes lead to, as far as they are known.
pub(in crate::store) struct Identities {
    /// For each node.
    nodes: Mutex<Vec<KnownNode>>,
}

/// The facts that are known of one node.
struct KnownNode {
    /// Its URL without the login.
    url: Arc<str>,
    run_id: Option<String>,
    /// The first node before it that leads to the same server.
    twin: Option<usize>,
    is_unknown_logged: bool,
}

/// One of the nodes, and all of them.
pub(super) struct Identity {
    all: Arc<Identities>,
    node: usize,
}

impl Identities {
    /// Nodes at these URLs. No server is known yet.
    pub(in crate::store) fn new(urls: impl IntoIterator<Item = String>) -> Identities {
        let known = |url: String| KnownNode {
            url: url.into(),
            run_id: None,
            twin: None,
            is_unknown_logged: false,
        };
        Identities {
            nodes: Mutex::new(urls.into_iter().map(known).collect()),
        }
    }

    /// The first node before this one that leads to the same server, by its URL. That one alone has
    /// a vote.
    pub(in crate::store) fn twin_of(&self, node: usize) -> Option<Arc<str>> {
        let nodes = self.nodes.lock();
        let twin = nodes.get(node)?.twin?;
        Some(Arc::clone(&nodes[twin].url))
    }

    /// Two nodes that lead to the same server, if there are any.
    pub(in crate::store) fn any_twins(&self) -> Option<[Arc<str>; 2]> {
        let nodes = self.nodes.lock();
        let (known, twin) = nodes.iter().find_map(|known| Some((known, known.twin?)))?;
        Some([Arc::clone(&nodes[twin].url), Arc::clone(&known.url)])
    }
}

impl Identity {
    pub(super) fn new(all: &Arc<Identities>, node: usize) -> Identity {
        Identity {
            all: Arc::clone(all),
            node,
        }
    }

    /// A new connection leads to the server with this id. Returns whether the connections before it
    /// led to another one.
    pub(super) fn note(&self, run_id: &str) -> bool {
        let mut nodes = self.all.nodes.lock();
        let before = nodes[self.node].run_id.replace(run_id.to_owned());
        let has_changed = before.as_deref().is_some_and(|before| before != run_id);
        let mut news = Vec::new();
        for at in 0..nodes.len() {
            let is_same =
                |other: &KnownNode| other.run_id.is_some() && other.run_id == nodes[at].run_id;
            let twin = nodes[..at].iter().position(is_same);
            if std::mem::replace(&mut nodes[at].twin, twin) != twin {
                let other = twin.map(|twin| Arc::clone(&nodes[twin].url));
                news.push((Arc::clone(&nodes[at].url), other));
            }
        }
        drop(nodes);
        // With no mutex held: a logger may do anything.
        for (url, twin) in news {
            match twin {
                Some(twin) => {
                    log::error!(
                        logger: Logger,
                        "{url} has no vote: it is the same server as {twin}"
                    )
                }
                None => {
                    log::info!(logger: Logger, "{url} has a vote again: it is a server of its own")
                }
            }
        }
        has_changed
    }

    /// The server does not say which one it is. It keeps its vote.
    pub(super) fn note_unknown(&self, why: &str) {
        let mut nodes = self.all.nodes.lock();
        let known = &mut nodes[self.node];
        known.run_id = None;
        if std::mem::replace(&mut known.is_unknown_logged, true) {
            return;
        }
        let url = Arc::clone(&known.url);
        drop(nodes);
        log::warn!(
            logger: Logger,
            "{url} may be the same server as another of the quorum, and have two votes: {why}"
        );
    }
}

/// The id in the reply to INFO. A service may hide it behind nothing, or behind zeros.
pub(super) fn run_id_of(info: &str) -> Option<&str> {
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!id.is_empty() && id.bytes().any(|letter| letter != b'0')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> (Arc<Identities>, Vec<Identity>) {
        let all = Arc::new(Identities::new(["a", "b", "c"].map(str::to_owned)));
        let nodes = (0..3).map(|node| Identity::new(&all, node)).collect();
        (all, nodes)
    }

    fn twins(all: &Identities) -> Vec<Option<String>> {
        (0..3)
            .map(|node| Some(all.twin_of(node)?.to_string()))
            .collect()
    }

    #[test]
    fn second_address_of_a_server_has_no_vote() {
        let (all, nodes) = three();
        assert!(!nodes[2].note("x"));
        assert!(!nodes[1].note("y"));
        assert_eq!(all.any_twins(), None);
        assert!(!nodes[0].note("x"));
        assert_eq!(twins(&all), [None, None, Some("a".to_owned())]);
        assert_eq!(all.any_twins(), Some(["a".into(), "c".into()]));
        // The other address leads elsewhere by now.
        assert!(nodes[0].note("z"));
        assert_eq!(twins(&all), [None, None, None]);
        assert!(nodes[1].note("x"));
        assert_eq!(twins(&all), [None, None, Some("b".to_owned())]);
        assert!(nodes[0].note("x"));
        let a = Some("a".to_owned());
        assert_eq!(twins(&all), [None, a.clone(), a]);
        assert!(!nodes[0].note("x"));
    }

    #[test]
    fn servers_that_hide_their_id_are_no_twins() {
        let (all, nodes) = three();
        for node in &nodes {
            node.note_unknown("no right");
        }
        assert_eq!(all.any_twins(), None);
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:1f0a\r\ntcp_port:6379\r\n";
        assert_eq!(run_id_of(info), Some("1f0a"));
        for hidden in ["run_id:\r\n", "run_id:0000000000\r\n", "tcp_port:1\r\n", ""] {
            assert_eq!(run_id_of(hidden), None, "{hidden}");
        }
    }
}
