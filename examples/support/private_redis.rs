//! Where the examples and benches get their Redis from: the environment names one, or else a private
//! redis-server is started, which ends with the program.

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

/// A Redis to connect to; a private one ends when this is dropped.
pub(crate) struct Redis {
    pub(crate) url: String,
    /// For people. Never has the URL in it, which may hold a password.
    pub(crate) about: String,
    _keeper: Option<Keeper>,
}

/// How a private server is spoken to.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "examples use the one, benches the other")]
pub(crate) enum Over {
    UnixSocket,
    Tcp,
}

/// The Redis that the environment variable names, else a private one. If there is neither, says what to do
/// and ends the program with status 2. `without` is the command that needs none, if there is one.
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

/// Any of these may be the server: Debian's redis-tools has it as redis-check-rdb, and what that program
/// does goes by the name it is called by.
const NAMES: [&str; 3] = ["redis-server", "valkey-server", "redis-check-rdb"];

/// A shell that ends the server and clears up as soon as our end of its standard input is closed. The
/// system does that too when this program is killed.
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
    let told = |e: io::Error| e.to_string();
    let dir = tempfile::Builder::new()
        .prefix("fairlock-")
        .tempdir()
        .map_err(told)?;
    let version = link_server(&dir.path().join("redis-server"))?;
    let socket = dir.path().join("socket");
    let port = match over {
        Over::UnixSocket => 0,
        Over::Tcp => free_port().map_err(told)?,
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
        // Ctrl-C at the terminal must not end the keeper before it has cleared up.
        .process_group(0);
    let keeper = Keeper(keeper.spawn().map_err(told)?);
    let dir = dir.keep();
    await_pong(&socket).map_err(|e| {
        let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
        format!("the private redis-server does not answer ({e}); it said:\n{log}")
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

/// Puts a link to the server's binary there, under the name that makes it act as one; answers its version.
fn link_server(link: &Path) -> Result<String, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates = NAMES
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
    for file in candidates.filter(is_executable) {
        let _ = fs::remove_file(link);
        symlink(&file, link).map_err(|e| e.to_string())?;
        let said = Command::new(link)
            .arg("--version")
            .output()
            .map(|out| out.stdout)
            .unwrap_or_default();
        // "Redis server v=7.0.15 sha=…"
        let said = String::from_utf8_lossy(&said);
        if let Some((product, rest)) = said.split_once(" server v=") {
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
            let mut said = [0; 5];
            stream.read_exact(&mut said)
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

{} one that you have in front of the same command:
    {variable}=redis://127.0.0.1/

or install the server; this program starts and ends one of its own then:
    Debian, Ubuntu   sudo apt-get install redis-tools
    Fedora           sudo dnf install redis
    Arch             sudo pacman -S redis
    Alpine           sudo apk add redis
    macOS            brew install redis",
        without.as_deref().unwrap_or("Name")
    )
}
