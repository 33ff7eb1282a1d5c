//! The Redis of the examples and benches. Either an environment variable has its URL, or this
//! module starts a private redis-server, which ends with the program.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::time::{Duration, Instant};
use std::{env, thread};

/// A Redis to connect to. A private one ends when this is dropped.
pub(crate) struct Redis {
    pub(crate) url: String,
    /// A text for people. Never contains the URL, which may have a password.
    pub(crate) about: String,
    _keeper: Option<Keeper>,
}

/// How to connect to a private server.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "examples use the one, benches the other")]
pub(crate) enum Over {
    UnixSocket,
    Tcp,
}

/// The Redis of the environment variable, or else a private one. If there is neither, prints what
/// to do and exits with status 2. `without` is a command that needs no Redis, if there is one.
pub(crate) fn redis_or_exit(variable: &str, over: Over, without: Option<&str>) -> Redis {
    if let Some(url) = env::var(variable).ok().filter(|url| !url.is_empty()) {
        return Redis {
            url,
            about: format!("the one that {variable} names"),
            _keeper: None,
        };
    }
    start_private(over).unwrap_or_else(|why| {
        eprintln!("{}", how_to_get_one(variable, without, &why));
        exit(2)
    })
}

/// Names under which the server may be installed. In Debian's redis-tools it is `redis-check-rdb`:
/// the program behaves according to the name that starts it.
const NAMES: [&str; 3] = ["redis-server", "valkey-server", "redis-check-rdb"];

/// A shell that ends the server and removes its files as soon as our end of its standard input
/// closes. The system closes it even if this program is killed.
const KEEPER: &str = r#"
dir=$1; shift
"$dir/redis-server" "$@" >"$dir/log" 2>&1 &
read -r nothing
kill -9 $!
wait
rm -rf "$dir"
"#;

struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn start_private(over: Over) -> Result<Redis, String> {
    let message = |e: io::Error| e.to_string();
    let dir = tempfile::Builder::new()
        .prefix("fairlock-")
        .tempdir()
        .map_err(message)?;
    let version = link_server(&dir.path().join("redis-server"))?;
    let socket = dir.path().join("socket");
    let port = match over {
        Over::UnixSocket => 0,
        Over::Tcp => free_port().map_err(message)?,
    };
    let mut keeper = Command::new("sh");
    keeper
        .args(["-c", KEEPER, "keeper"])
        .arg(dir.path())
        .args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
        ])
        .arg("--unixsocket")
        .arg(&socket)
        .arg("--dir")
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C at the terminal must not end the keeper before it has removed the files.
        .process_group(0);
    let keeper = Keeper(keeper.spawn().map_err(message)?);
    let dir = dir.keep();
    await_pong(&socket).map_err(|e| {
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        format!("the private redis-server does not answer ({e}); its log:\n{log}")
    })?;
    let (url, place) = match over {
        Over::UnixSocket => (
            format!("redis+unix://{}", socket.display()),
            "a unix socket".to_owned(),
        ),
        Over::Tcp => (
            format!("redis://127.0.0.1:{port}/"),
            format!("port {port} of this host"),
        ),
    };
    Ok(Redis {
        url,
        about: format!("a private {version} on {place}"),
        _keeper: Some(keeper),
    })
}

/// Creates a link to the binary of the server. The name of the link makes it act as a server.
/// Returns its version.
fn link_server(link: &Path) -> Result<String, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates = NAMES
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
    for file in candidates.filter(is_executable) {
        let _ = fs::remove_file(link);
        symlink(&file, link).map_err(|e| e.to_string())?;
        let output = Command::new(link)
            .arg("--version")
            .output()
            .map(|out| out.stdout)
            .unwrap_or_default();
        // "Redis server v=7.0.15 sha=…"
        let output = String::from_utf8_lossy(&output);
        if let Some((product, rest)) = output.split_once(" server v=") {
            let version = rest.split_whitespace().next().unwrap_or("?");
            return Ok(format!("{} {version}", product.to_lowercase()));
        }
    }
    Err("there is no redis-server on the path".to_owned())
}

fn is_executable(file: &PathBuf) -> bool {
    fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

fn await_pong(socket: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let pong = UnixStream::connect(socket).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(b"PING\r\n")?;
            let mut reply = [0; 5];
            stream.read_exact(&mut reply)
        });
        match pong {
            Err(e) if Instant::now() > deadline => return Err(e),
            Err(_) => thread::sleep(Duration::from_millis(5)),
            Ok(()) => return Ok(()),
        }
    }
}

fn how_to_get_one(variable: &str, without: Option<&str>, why: &str) -> String {
    let without = without.map(|command| {
        format!("Run it without one, on an in-memory store:\n    {command}\n\nor name")
    });
    format!(
        "This needs a Redis, and {why}.

{} a Redis in front of the same command:
    {variable}=redis://127.0.0.1/

or install the server. Then this program starts and ends a private one:
    Debian, Ubuntu   sudo apt-get install redis-tools
    Fedora           sudo dnf install redis
    Arch             sudo pacman -S redis
    Alpine           sudo apk add redis
    macOS            brew install redis",
        without.as_deref().unwrap_or("Name")
    )
}
