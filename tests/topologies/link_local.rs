//! Servers at a link-local address, in a network of the test's own: in a URL such an address needs the
//! zone, and servers name each other without it.

use std::env;
use std::net::{SocketAddrV6, TcpStream};
use std::process::Command;
use std::time::Duration;

use fairlock::{Error, LockManager, endpoint::Endpoint};

use crate::support::child::{Child, Role, report};
use crate::support::server::free_address;
use crate::support::{SLACK, Server, notes, until};

const SOON: Duration = Duration::from_secs(30);
const ADDRESS: &str = "fe80::7";

pub(crate) const AT_LINK_LOCAL: (&str, Role) = ("at_link_local", at_link_local);

#[test]
fn servers_at_a_link_local_address_are_used_with_its_zone() {
    let is_root = rustix::process::geteuid().is_root();
    let script =
        format!("ip link set lo up && ip addr add {ADDRESS}/64 dev lo nodad && exec \"$@\"");
    let alone = |rest: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--net");
        if !is_root {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-c", &script, "sh"]).args(rest);
        command
    };
    if !alone(&["true"])
        .output()
        .is_ok_and(|ended| ended.status.success())
    {
        notes::left_out("this host lets this user make no network of its own");
        return;
    }
    let this = env::current_exe().expect("a running test has a binary");
    let command = alone(&[this.to_str().expect("it is UTF-8")]);
    let mut child = Child::spawn_by(command, "at_link_local", &[]);
    for step in ["single", "master of a replica", "sentinel", "cluster"] {
        assert_eq!(child.expect("locked", SOON), step);
    }
    child.join();
}

/// A server on both addresses: the tools of these tests use the other one.
fn server(more: &[&str]) -> Server {
    let bind = [
        "--bind",
        "127.0.0.1",
        &format!("{ADDRESS}%lo"),
        "--protected-mode",
        "no",
    ];
    Server::tcp_with(&[&bind[..], more].concat())
}

fn lock(step: &str, endpoint: impl Into<Endpoint>) {
    let mgr = LockManager::builder(endpoint)
        .connect_timeout(SLACK)
        .build()
        .unwrap_or_else(|error| panic!("{step}: {error}"));
    mgr.lock("a").unwrap().unlock().unwrap();
    report(format_args!("locked {step}"));
}

fn at_link_local(_: &[String]) {
    let zoned = format!("{ADDRESS}%lo");
    let single = server(&[]);
    let port = single.addr().port();
    // The kernel adds the route a moment after the address. The loopback is its first interface.
    let address = SocketAddrV6::new(ADDRESS.parse().expect("an address"), port, 0, 1);
    until(SOON, "there is a route", || {
        TcpStream::connect_timeout(&address.into(), SLACK).is_ok()
    });
    let url = format!("redis://[{ADDRESS}%25lo]:{port}/");
    assert_eq!(Endpoint::from(&url).to_string(), url.trim_end_matches('/'));
    lock("single", url);

    let replica = server(&["--replicaof", &zoned, &port.to_string()]);
    let at_replica = replica.addr().port();
    let error = LockManager::connect(Endpoint::server(&zoned, at_replica)).unwrap_err();
    let Error::Misused { message, .. } = &error else {
        panic!("{error:?}");
    };
    // The replica names its master, by a URL that works.
    let (_, master) = message.split_once("use ").expect("what to use");
    let (master, _) = master.split_once(',').expect("or another");
    lock("master of a replica", master);

    let config = format!("sentinel monitor m {zoned} {port} 1\nprotected-mode no\n");
    let more = ["--bind", "127.0.0.1", &zoned];
    let sentinel = Server::sentinel_with(free_address(), &config, &more).expect("it starts");
    let sentinels = [(&zoned, sentinel.addr().port())];
    lock("sentinel", Endpoint::sentinel("m", sentinels));

    let cluster = server(&["--cluster-enabled", "yes", "--cluster-announce-ip", ADDRESS]);
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let add: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
        .into_iter()
        .chain(slots.iter().map(String::as_str))
        .collect();
    cluster.query::<()>(&add);
    lock(
        "cluster",
        Endpoint::cluster([(&zoned, cluster.addr().port())]),
    );
}
