//! A network of its own: hosts in network namespaces, connected by a bridge.
//!
//! Everything is inside namespaces that [`enter`] makes for this process alone, so it is gone when
//! the process ends.

use std::{
    env, fs,
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    thread,
};

/// A host of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Host(usize);

/// Hosts with an address each. Every pair of them can talk until something is cut.
pub(crate) struct Network {
    tag: &'static str,
    subnet: u8,
    hosts: usize,
}

/// A MAC address that no host has. Packets to it vanish, as on a broken network. (A route
/// of the type `blackhole` makes `connect` fail at once instead, with EINVAL.)
const NOWHERE: &str = "02:00:00:00:00:66";

const INSIDE: &str = "FAIRLOCK_INSIDE_NAMESPACES";

/// Starts this program again inside namespaces of its own, in place of this process. Returns once
/// inside. An error says what is missing.
pub(crate) fn enter() -> Result<(), String> {
    if env::var_os(INSIDE).is_none() {
        let this = env::current_exe().map_err(|e| format!("this program has no path: {e}"))?;
        let e = Command::new("unshare")
            .args(["--net", "--mount", "--"])
            .arg(this)
            .args(env::args_os().skip(1))
            .env(INSIDE, "yes")
            .exec();
        return Err(format!("cannot run `unshare`: {e}"));
    }
    // `ip netns` keeps its names here.
    fs::create_dir_all("/run/netns").map_err(|e| format!("/run/netns: {e}"))?;
    run(Command::new("mount").args(["-t", "tmpfs", "none", "/run/netns"]))?;
    run(Command::new("ip").args(["link", "set", "lo", "up"]))
}

/// Why namespaces cannot be made here, or `None`.
pub(crate) fn missing() -> Option<String> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        return Some("this user is not root".to_owned());
    }
    for tool in ["ip", "unshare", "setpriv", "mount"] {
        if Command::new(tool)
            .arg("-V")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            return Some(format!("there is no `{tool}`"));
        }
    }
    run(Command::new("unshare").args(["--net", "--mount", "--", "true"])).err()
}

impl Network {
    /// A network without hosts. The tag is part of its devices' names, the subnet of its addresses.
    pub(crate) fn new(tag: &'static str, subnet: u8) -> Network {
        let bridge = format!("br-{tag}");
        batch(
            &[],
            &format!("link add {bridge} type bridge\nlink set {bridge} up\n"),
        );
        Network {
            tag,
            subnet,
            hosts: 0,
        }
    }

    pub(crate) fn add_host(&mut self) -> Host {
        let host = Host(self.hosts);
        self.hosts += 1;
        let (name, link) = (self.name(host), self.link(host));
        let bridge = format!("br-{}", self.tag);
        batch(
            &[],
            &format!(
                "netns add {name}\n\
                 link add {link} type veth peer name e0 netns {name}\n\
                 link set {link} master {bridge} up\n"
            ),
        );
        let address = self.address(host);
        batch(
            &["-n", &name],
            &format!("addr add {address}/16 dev e0\nlink set e0 up\nlink set lo up\n"),
        );
        host
    }

    pub(crate) fn address(&self, host: Host) -> String {
        format!("10.{}.0.{}", self.subnet, host.0 + 1)
    }

    /// A command that runs this program on that host.
    pub(crate) fn command(&self, host: Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.name(host)])
            .arg(program);
        command
    }

    /// Cuts a host off from all others.
    pub(crate) fn cut(&self, host: Host) {
        batch(&[], &format!("link set {} down\n", self.link(host)));
    }

    /// Connects a host that was [`cut`](Self::cut).
    pub(crate) fn heal(&self, host: Host) {
        batch(&[], &format!("link set {} up\n", self.link(host)));
    }

    /// Nothing that `from` sends reaches `to`. The other direction works.
    pub(crate) fn cut_one_way(&self, from: Host, to: Host) {
        self.cut_from(from, &[to]);
    }

    /// These two hosts do not hear each other.
    pub(crate) fn cut_between(&self, a: Host, b: Host) {
        self.cut_sides(&[a], &[b]);
    }

    /// No host of one side reaches one of the other.
    pub(crate) fn cut_sides(&self, these: &[Host], those: &[Host]) {
        these.iter().for_each(|host| self.cut_from(*host, those));
        those.iter().for_each(|host| self.cut_from(*host, these));
    }

    fn cut_from(&self, from: Host, to: &[Host]) {
        let lines: String = to
            .iter()
            .map(|to| {
                let to = self.address(*to);
                format!("neigh replace {to} lladdr {NOWHERE} nud permanent dev e0\n")
            })
            .collect();
        batch(&["-n", &self.name(from)], &lines);
    }

    /// Repairs everything that is cut.
    pub(crate) fn heal_all(&self) {
        for host in (0..self.hosts).map(Host) {
            self.heal(host);
            let name = self.name(host);
            batch(&["-n", &name], "neigh flush dev e0 nud permanent\n");
        }
    }

    fn name(&self, host: Host) -> String {
        format!("{}{}", self.tag, host.0)
    }

    /// The bridge's end of the host's link.
    fn link(&self, host: Host) -> String {
        format!("v-{}{}", self.tag, host.0)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel ends a namespace some time after `netns del`, and its links with it.
        let mut lines: String = (0..self.hosts)
            .map(Host)
            .map(|host| {
                format!(
                    "link del {}\nnetns del {}\n",
                    self.link(host),
                    self.name(host)
                )
            })
            .collect();
        lines.push_str(&format!("link del br-{}\n", self.tag));
        if !thread::panicking() {
            batch(&[], &lines);
        }
    }
}

/// Gives `ip` these lines in one run.
fn batch(options: &[&str], lines: &str) {
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`ip` was found before");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin
        .write_all(lines.as_bytes())
        .expect("`ip` reads its commands");
    drop(stdin);
    let output = child.wait_with_output().expect("`ip` ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {options:?} failed: {said}\n{lines}"
    );
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot run {command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?} failed: {}", said.trim()))
    }
}
