//! The scenarios of each topology: what is cut, and what must hold.

use std::time::Duration;

use crate::{
    network::{Host, Network},
    rng::Rng,
    servers::{Server, Servers},
};

/// A set of servers, and three clients: A, B and C.
pub(crate) struct World {
    pub(crate) servers: Servers,
    pub(crate) network: Network,
    pub(crate) clients: [Host; 3],
}

pub(crate) const CLIENTS: [&str; 3] = ["A", "B", "C"];

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) fault: Fault,
    /// At least; longer than a TTL, for which a client that is cut off holds its locks.
    pub(crate) lasts: Duration,
    /// The grants to each client from this long after the cut until the repair.
    pub(crate) takes_effect_in: Duration,
    pub(crate) grants: [Grants; 3],
    pub(crate) promises: Promises,
}

pub(crate) enum Fault {
    /// Cuts once, and repairs at the end.
    Steady(fn(&World)),
    /// Cuts something else each time, and repairs it in between.
    Flapping(fn(&World, &mut Rng)),
}

/// Whether a client is granted locks that it asks for while something is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Grants {
    Some,
    None,
    Unknown,
}

/// The promises that hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Promises {
    /// All, while this client is away.
    AllWithoutClient(usize),
    /// All, while servers are away.
    All,
    /// A new master may lack the newest grants and places, but fences rise.
    Failover,
    /// Two masters grant for a while, so the fences of the two sides do not rise either.
    TwoMasters,
}

use Grants::{None as No, Some as Yes, Unknown};

const fn scenario(
    name: &'static str,
    fault: Fault,
    [lasts, takes_effect_in]: [u64; 2],
    grants: [Grants; 3],
    promises: Promises,
) -> Scenario {
    Scenario {
        name,
        fault,
        lasts: Duration::from_millis(lasts),
        takes_effect_in: Duration::from_millis(takes_effect_in),
        grants,
        promises,
    }
}

const A: usize = 0;

pub(crate) const SINGLE: [Scenario; 7] = [
    scenario(
        "client A is cut off",
        Fault::Steady(|world| world.network.cut(world.clients[A])),
        [3500, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "requests of client A are lost",
        Fault::Steady(|world| {
            let server = world.servers.master().host;
            world.network.cut_one_way(world.clients[A], server);
        }),
        [3500, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "replies to client A are lost",
        Fault::Steady(|world| {
            let server = world.servers.master().host;
            world.network.cut_one_way(server, world.clients[A]);
        }),
        [3500, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "the server is cut off",
        Fault::Steady(|world| world.network.cut(world.servers.master().host)),
        [3500, 300],
        [No, No, No],
        Promises::All,
    ),
    scenario(
        "the link of client A flaps",
        Fault::Flapping(|world, _| world.network.cut(world.clients[A])),
        [4000, 0],
        [Unknown, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "the server's link flaps",
        Fault::Flapping(|world, _| world.network.cut(world.servers.master().host)),
        [4000, 0],
        [Unknown, Unknown, Unknown],
        Promises::All,
    ),
    scenario(
        "random cuts",
        Fault::Flapping(random_cuts),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::All,
    ),
];

pub(crate) const SENTINEL: [Scenario; 6] = [
    scenario(
        "client A is cut off from the sentinels",
        Fault::Steady(|world| {
            let Servers::Sentinel { sentinels, .. } = &world.servers else {
                unreachable!("these are the scenarios of sentinels")
            };
            let sentinels: Vec<Host> = sentinels.iter().map(|s| s.host).collect();
            world.network.cut_sides(&[world.clients[A]], &sentinels);
        }),
        [2500, 0],
        [Yes, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "client A is cut off from the master",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            world.network.cut_between(world.clients[A], master);
        }),
        [3500, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "client A is in the minority",
        Fault::Steady(|world| {
            let Servers::Sentinel { sentinels, .. } = &world.servers else {
                unreachable!("these are the scenarios of sentinels")
            };
            let replica = others(world)[0];
            cut_group(world, &[world.clients[A], replica, sentinels[0].host]);
        }),
        [3500, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "the master and client A are cut off, min-replicas-to-write 1",
        Fault::Steady(|world| {
            for node in world.servers.nodes() {
                node.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
                node.query::<()>(&["CONFIG", "SET", "min-replicas-max-lag", "1"]);
            }
            cut_group(world, &[world.servers.master().host, world.clients[A]]);
        }),
        [6000, 3500],
        [No, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        // The old master grants until the sentinels have demoted it.
        "SENTINEL FAILOVER",
        Fault::Steady(|world| world.servers.fail_over()),
        [3000, 1500],
        [Yes, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "random cuts",
        Fault::Flapping(random_cuts),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::TwoMasters,
    ),
];

pub(crate) const FAILOVER: [Scenario; 5] = [
    scenario(
        "the master is cut off from all other servers",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            let others: Vec<Host> = servers_without(world, &[master]);
            world.network.cut_sides(&[master], &others);
        }),
        [5000, 3500],
        [Yes, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "what the master sends to other servers is lost",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            for other in servers_without(world, &[master]) {
                world.network.cut_one_way(master, other);
            }
        }),
        [5000, 3500],
        [Yes, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "the master and client A are cut off",
        Fault::Steady(|world| {
            cut_group(world, &[world.servers.master().host, world.clients[A]]);
        }),
        [6000, 3500],
        [Unknown, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "the master is cut off from everyone",
        Fault::Steady(|world| world.network.cut(world.servers.master().host)),
        [5000, 3500],
        [Yes, Yes, Yes],
        Promises::Failover,
    ),
    scenario(
        "the master's link flaps",
        Fault::Flapping(|world, _| world.network.cut(world.servers.master().host)),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::TwoMasters,
    ),
];

pub(crate) const CLUSTER: [Scenario; 7] = [
    scenario(
        "client A is cut off from one master",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            world.network.cut_between(world.clients[A], master);
        }),
        [3000, 0],
        [Yes, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "one master is cut off from everyone",
        Fault::Steady(|world| world.network.cut(world.servers.master().host)),
        [5500, 4000],
        [Yes, Yes, Yes],
        Promises::Failover,
    ),
    scenario(
        "one master is cut off from all other servers",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            let others = servers_without(world, &[master]);
            world.network.cut_sides(&[master], &others);
        }),
        [5500, 4000],
        [Yes, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "what one master sends to other servers is lost",
        Fault::Steady(|world| {
            let master = world.servers.master().host;
            for other in servers_without(world, &[master]) {
                world.network.cut_one_way(master, other);
            }
        }),
        [5500, 4000],
        [Yes, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "one master and client A are cut off",
        Fault::Steady(|world| {
            cut_group(world, &[world.servers.master().host, world.clients[A]]);
        }),
        [6500, 4000],
        [No, Yes, Yes],
        Promises::TwoMasters,
    ),
    scenario(
        "one master's link flaps",
        Fault::Flapping(|world, _| world.network.cut(world.servers.master().host)),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::TwoMasters,
    ),
    scenario(
        "random cuts",
        Fault::Flapping(random_cuts),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::TwoMasters,
    ),
];

pub(crate) const QUORUM: [Scenario; 9] = [
    scenario(
        "client A is cut off from two of five nodes",
        Fault::Steady(|world| {
            world
                .network
                .cut_sides(&[world.clients[A]], &nodes(world, &[0, 1]))
        }),
        [3500, 300],
        [Yes, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "client A is cut off from three of five nodes",
        Fault::Steady(|world| {
            world
                .network
                .cut_sides(&[world.clients[A]], &nodes(world, &[0, 1, 2]));
        }),
        [4000, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "each client reaches another three of five nodes",
        Fault::Steady(|world| {
            for (client, away) in [[0, 1], [1, 2], [3, 4]].iter().enumerate() {
                world
                    .network
                    .cut_sides(&[world.clients[client]], &nodes(world, away));
            }
        }),
        [4000, 300],
        [Yes, Yes, Yes],
        Promises::All,
    ),
    scenario(
        "two of five nodes are cut off",
        Fault::Steady(|world| {
            nodes(world, &[3, 4])
                .iter()
                .for_each(|n| world.network.cut(*n))
        }),
        [3500, 300],
        [Yes, Yes, Yes],
        Promises::All,
    ),
    scenario(
        "three of five nodes are cut off",
        Fault::Steady(|world| {
            nodes(world, &[2, 3, 4])
                .iter()
                .for_each(|n| world.network.cut(*n));
        }),
        [3500, 300],
        [No, No, No],
        Promises::All,
    ),
    scenario(
        "replies of two of five nodes are lost",
        Fault::Steady(|world| {
            for node in nodes(world, &[0, 4]) {
                for client in world.clients {
                    world.network.cut_one_way(node, client);
                }
            }
        }),
        [3500, 300],
        [Yes, Yes, Yes],
        Promises::All,
    ),
    scenario(
        "replies of three of five nodes to client A are lost",
        Fault::Steady(|world| {
            for node in nodes(world, &[0, 2, 4]) {
                world.network.cut_one_way(node, world.clients[A]);
            }
        }),
        [4000, 300],
        [No, Yes, Yes],
        Promises::AllWithoutClient(A),
    ),
    scenario(
        "links of random nodes flap",
        Fault::Flapping(|world, rng| {
            for _ in 0..3 {
                world.network.cut(nodes(world, &[rng.below(5)])[0]);
            }
        }),
        [6000, 0],
        [Unknown, Unknown, Unknown],
        Promises::All,
    ),
    scenario(
        "random cuts",
        Fault::Flapping(random_cuts),
        [5000, 0],
        [Unknown, Unknown, Unknown],
        Promises::All,
    ),
];

/// The hosts of the nodes that are not the master.
fn others(world: &World) -> Vec<Host> {
    let master = world.servers.master().host;
    let nodes = world.servers.nodes().iter().map(|node| node.host);
    nodes.filter(|host| *host != master).collect()
}

fn nodes(world: &World, which: &[usize]) -> Vec<Host> {
    let all: &[Server] = world.servers.nodes();
    which.iter().map(|at| all[*at].host).collect()
}

fn servers_without(world: &World, these: &[Host]) -> Vec<Host> {
    let mut hosts = world.servers.hosts();
    hosts.retain(|host| !these.contains(host));
    hosts
}

/// Cuts these hosts off from all others, but not from each other.
fn cut_group(world: &World, these: &[Host]) {
    let mut others = servers_without(world, these);
    others.extend(world.clients.iter().filter(|host| !these.contains(host)));
    world.network.cut_sides(these, &others);
}

/// Cuts random pairs of hosts, most of them one way.
fn random_cuts(world: &World, rng: &mut Rng) {
    let mut hosts = world.servers.hosts();
    hosts.extend(world.clients);
    for _ in 0..2 * hosts.len() {
        let (from, to) = (*rng.pick(&hosts), *rng.pick(&hosts));
        if from == to {
            continue;
        }
        if rng.percent(30) {
            world.network.cut_between(from, to);
        } else {
            world.network.cut_one_way(from, to);
        }
    }
}
