//! A real redis-server for every test.

use std::{
    env, fs,
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt as _, net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, FromRedisValue, IntoConnectionInfo as _, RedisResult};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::{freeze, notes, signal, until_some};

/// A redis-server process, on a unix socket unless addresses matter to the test.
///
/// It keeps nothing on disk unless the test asks for it. It ends by SIGKILL, in `Drop` at the
/// latest. All methods may be called from any thread.
pub(crate) struct Server {
    address: Address,
    extra: Vec<String>,
    env: Vec<(String, String)>,
    dir: TempDir,
    running: Mutex<Running>,
    test: String,
    started: Instant,
}

#[derive(Debug, Clone)]
enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

struct Running {
    child: Option<Child>,
    /// The connection for this test's own queries. The first query opens it.
    admin: Option<Connection>,
    /// How many of the commands in the server's own counter came from this `Server`.
    own_commands: u64,
}

/// The time in which a server must answer its first PING; a loaded machine needs part of it.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The configuration of a server that is a sentinel.
const SENTINEL_CONFIG: &str = "sentinel.conf";

/// The name of the admin connection. [`Server::clients`] leaves it out.
const ADMIN: &str = "test-support";

impl Server {
    /// A server on a unix socket.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server on a unix socket, with arguments such as `["--appendonly", "yes"]`.
    pub(crate) fn start_with(extra: &[&str]) -> Self {
        let dir = directory();
        let address = Address::Unix(dir.path().join("s"));
        Self::at(address, dir, extra).unwrap_or_else(|why| panic!("{why}"))
    }

    /// A server on a unix socket, with variables in its environment.
    pub(crate) fn start_with_env(env: &[(&str, &str)]) -> Self {
        let dir = directory();
        let address = Address::Unix(dir.path().join("s"));
        Self::with_env(address, dir, &[], env).unwrap_or_else(|why| panic!("{why}"))
    }

    /// A server on a free port of 127.0.0.1.
    pub(crate) fn tcp() -> Self {
        Self::tcp_with(&[])
    }

    /// A server on a free port of 127.0.0.1, with arguments.
    pub(crate) fn tcp_with(extra: &[&str]) -> Self {
        Self::on_a_free_port(extra, &[])
    }

    /// A server on a free port of 127.0.0.1, with variables in its environment.
    pub(crate) fn tcp_with_env(env: &[(&str, &str)]) -> Self {
        Self::on_a_free_port(&[], env)
    }

    /// A server on this port of 127.0.0.1, with arguments. An error if the port is taken.
    pub(crate) fn tcp_at(addr: SocketAddr, extra: &[&str]) -> Result<Self, String> {
        Self::at(Address::Tcp(addr), directory(), extra)
    }

    /// A sentinel on this port of 127.0.0.1, with this configuration. An error if the port is taken.
    pub(crate) fn sentinel_at(addr: SocketAddr, config: &str) -> Result<Self, String> {
        Self::sentinel_with(addr, config, &[])
    }

    /// The same, with arguments.
    pub(crate) fn sentinel_with(
        addr: SocketAddr,
        config: &str,
        extra: &[&str],
    ) -> Result<Self, String> {
        let dir = directory();
        fs::write(dir.path().join(SENTINEL_CONFIG), config).expect("our own directory is writable");
        Self::at(Address::Tcp(addr), dir, extra)
    }

    fn on_a_free_port(extra: &[&str], env: &[(&str, &str)]) -> Self {
        let mut why = String::new();
        // Another process may take the port between our check and the server's bind.
        for _ in 0..20 {
            match Self::with_env(Address::Tcp(free_address()), directory(), extra, env) {
                Ok(server) => return server,
                Err(e) if e.contains("in use") => why = e,
                Err(e) => panic!("{e}"),
            }
        }
        panic!("twenty ports in a row were taken; the last server said: {why}");
    }

    fn at(address: Address, dir: TempDir, extra: &[&str]) -> Result<Self, String> {
        Self::with_env(address, dir, extra, &[])
    }

    fn with_env(
        address: Address,
        dir: TempDir,
        extra: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Self, String> {
        let server = Self {
            address,
            extra: extra.iter().map(ToString::to_string).collect(),
            env: env
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
            dir,
            running: Mutex::new(Running {
                child: None,
                admin: None,
                own_commands: 0,
            }),
            test: thread::current().name().unwrap_or("unnamed").to_owned(),
            started: Instant::now(),
        };
        server.launch(&mut server.running())?;
        Ok(server)
    }

    /// The address that a client connects to.
    pub(crate) fn url(&self) -> String {
        match &self.address {
            Address::Unix(path) => format!("redis+unix://{}", path.display()),
            Address::Tcp(addr) => format!("redis://{addr}/"),
        }
    }

    /// The address of a server that [`tcp`](Self::tcp) started.
    pub(crate) fn addr(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(addr) => *addr,
            Address::Unix(_) => panic!("a server on a unix socket has no address: use Server::tcp"),
        }
    }

    /// The server's working directory: its log, and its append-only file if it keeps one.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A connection of the test's own, with timeouts.
    pub(crate) fn connection(&self) -> Connection {
        connect(&self.url()).unwrap_or_else(|e| panic!("cannot connect to {}: {e}", self.url()))
    }

    /// Sends one command and panics unless the answer is a `T`.
    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_query(command)
            .unwrap_or_else(|e| panic!("{command:?} failed: {e}"))
    }

    /// Sends one command.
    pub(crate) fn try_query<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut running = self.running();
        if running.admin.is_none() {
            running.admin = Some(connect(&self.url())?);
            self.ask::<()>(&mut running, &["CLIENT", "SETNAME", ADMIN])?;
        }
        self.ask(&mut running, command)
    }

    fn ask<T: FromRedisValue>(&self, running: &mut Running, command: &[&str]) -> RedisResult<T> {
        let admin = running.admin.as_mut().expect("try_query has just set it");
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        let answer = cmd.query(admin);
        running.own_commands += 1;
        // After an error that the server did not send, the state of the connection is unknown.
        if matches!(&answer, Err(e) if e.code().is_none()) {
            running.admin = None;
        }
        answer
    }

    /// Kills the server with SIGKILL and waits for its end. Does nothing if it is dead already.
    pub(crate) fn kill(&self) {
        end(&mut self.running());
    }

    /// Whether the server was not killed.
    pub(crate) fn is_running(&self) -> bool {
        self.running().child.is_some()
    }

    /// Starts the server again, and kills it first if it runs. It has the same address, directory
    /// and arguments, and is empty unless it keeps an append-only file.
    pub(crate) fn restart(&self) {
        let mut running = self.running();
        end(&mut running);
        if let Err(why) = self.launch(&mut running) {
            panic!("the server did not come back: {why}");
        }
    }

    /// Stops the server with SIGSTOP: it still accepts connections, and answers nothing.
    pub(crate) fn stop(&self) {
        freeze(pid_of(&self.running()));
    }

    /// Resumes a stopped server.
    pub(crate) fn cont(&self) {
        signal(pid_of(&self.running()), Signal::CONT);
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        pid_of(&self.running())
            .as_raw_nonzero()
            .get()
            .cast_unsigned()
    }

    /// One of the numbers of INFO.
    pub(crate) fn counted(&self, what: &str) -> u64 {
        let info: String = self.query(&["INFO"]);
        let number = info
            .lines()
            .find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
        number
            .and_then(|n| n.trim().parse().ok())
            .unwrap_or_else(|| panic!("INFO has no {what}"))
    }

    /// Commands that the server has run since it started, except those that this `Server` sent.
    pub(crate) fn commands_processed(&self) -> u64 {
        let all = self.counted("total_commands_processed");
        // The INFO that was just answered is not in its own count.
        all - (self.running().own_commands - 1)
    }

    /// How often the server has run a command.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats: String = self.query(&["INFO", "commandstats"]);
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    /// The lines of CLIENT LIST, without this `Server`'s own connection.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list: String = self.query(&["CLIENT", "LIST"]);
        list.lines()
            .filter(|line| !line.contains(&format!(" name={ADMIN} ")))
            .map(str::to_owned)
            .collect()
    }

    /// When the key expires, in ms since 1970.
    pub(crate) fn expires_at(&self, key: &str) -> i64 {
        if !is_redis_62() {
            return self.query(&["PEXPIRETIME", key]);
        }
        // 6.2 tells only what is left, and its clock goes on within a script.
        let look = "local function ms() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
                    local before, left, now
                    repeat before, left, now = ms(), redis.call('PTTL', KEYS[1]), ms() until before == now
                    return left < 0 and left or now + left";
        self.query(&["EVAL", look, "1", key])
    }

    /// The keys of database 0 that would stay forever.
    pub(crate) fn keys_without_ttl(&self) -> Vec<String> {
        let keys: Vec<String> = self.query(&["KEYS", "*"]);
        keys.into_iter()
            .filter(|key| self.query::<i64>(&["PTTL", key]) == -1)
            .collect()
    }

    fn launch(&self, running: &mut Running) -> Result<(), String> {
        let log = self.dir.path().join("log");
        let out = File::create(&log).expect("our own directory is writable");
        let mut command = Command::new(binary());
        command.arg0("redis-server");
        let sentinel_config = self.dir.path().join(SENTINEL_CONFIG);
        if sentinel_config.exists() {
            // A sentinel rewrites it, so a restart finds what it knew.
            command.arg(sentinel_config).arg("--sentinel");
        }
        command
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path());
        match &self.address {
            Address::Unix(path) => command.args(["--port", "0"]).arg("--unixsocket").arg(path),
            Address::Tcp(addr) => command
                .args(["--bind", "127.0.0.1", "--port"])
                .arg(addr.port().to_string()),
        };
        let mut child = command
            .args(&self.extra)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file can be shared"))
            .stderr(out)
            .spawn()
            .map_err(|e| format!("{}: {e}", binary().display()))?;
        let pid = child.id();
        let ready = until_some(READY_WITHIN, "redis-server answers PING", || {
            if let Ok(Some(status)) = child.try_wait() {
                let output = fs::read_to_string(&log).unwrap_or_default();
                return Some(Err(format!("redis-server ended with {status}: {output}")));
            }
            self.address.serves(pid).then_some(Ok(()))
        });
        *running = Running {
            child: Some(child),
            admin: None,
            own_commands: 0,
        };
        ready
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // The server must be killed even after a test has panicked with the lock held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.running());
        notes::time(self.started.elapsed().as_millis(), &self.test);
    }
}

impl Address {
    /// True if the process `pid` answers here. Another server could have taken the port first, and
    /// would answer PING as well.
    fn serves(&self, pid: u32) -> bool {
        let answer = match self {
            Self::Unix(path) => UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(PROBE_WITHIN)?;
                probe(stream)
            }),
            Self::Tcp(addr) => TcpStream::connect(addr).and_then(|stream| {
                stream.set_read_timeout(PROBE_WITHIN)?;
                probe(stream)
            }),
        };
        match answer {
            // A test has renamed PING or INFO. Nobody else has a socket in our own directory.
            Ok(output) if output.contains("unknown command") && !output.contains("QUIT") => {
                matches!(self, Self::Unix(_))
            }
            Ok(output) if output.starts_with("+PONG") => {
                output.contains(&format!("\nprocess_id:{pid}\r")) || output.contains("-NOPERM")
            }
            // Alive, but it asks for a password first.
            Ok(output) => output.starts_with("-NOAUTH") || output.starts_with("-NOPERM"),
            Err(_) => false,
        }
    }
}

const PROBE_WITHIN: Option<Duration> = Some(Duration::from_secs(2));

fn probe(mut stream: impl Read + Write) -> io::Result<String> {
    stream.write_all(b"PING\r\nINFO server\r\nQUIT\r\n")?;
    let mut output = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let read = stream.read(&mut chunk)?;
        output.extend(&chunk[..read]);
        let text = String::from_utf8_lossy(&output);
        // Newer sentinels do not know QUIT, and refuse it before a login.
        if read == 0 || text.contains("unknown command 'QUIT'") || text.starts_with("-NOAUTH") {
            return Ok(text.into_owned());
        }
    }
}

/// A script of a test's own may look at a hundred thousand entries.
const OWN_CONNECTION: Duration = Duration::from_secs(60);

fn connect(url: &str) -> RedisResult<Connection> {
    let info = url.into_connection_info()?;
    let redis = info.redis_settings().clone().set_skip_set_lib_name();
    let client = redis::Client::open(info.set_redis_settings(redis))?;
    let connection = client.get_connection_with_timeout(OWN_CONNECTION)?;
    connection.set_read_timeout(Some(OWN_CONNECTION))?;
    connection.set_write_timeout(Some(OWN_CONNECTION))?;
    Ok(connection)
}

fn end(running: &mut Running) {
    running.admin = None;
    if let Some(mut child) = running.child.take() {
        // SIGKILL ends a stopped process too.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn pid_of(running: &Running) -> Pid {
    Pid::from_child(running.child.as_ref().expect("the server was killed"))
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("fairlock-")
        .tempdir()
        .expect("tests need a writable temporary directory")
}

/// A port outside the range that the kernel gives to clients: a server that is killed and started
/// again must find its port free. So must the node of a cluster its second port, which is the bus's. No
/// server has that as its first port.
pub(crate) fn free_address() -> SocketAddr {
    const BUS: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 11_000 + (process::id() as u16).wrapping_mul(97).wrapping_add(step) % BUS;
        if [port, port + BUS]
            .map(at)
            .map(TcpListener::bind)
            .iter()
            .all(Result::is_ok)
        {
            return at(port);
        }
    }
}

/// Whether the servers are a Redis 6.2: it lacks some settings and commands.
pub(crate) fn is_redis_62() -> bool {
    version().starts_with("Redis server v=6.2.")
}

/// Whether the servers are a Redis 7, whose words the in-memory store uses. 6.2 and Valkey have
/// other words for some errors.
pub(crate) fn is_redis_7() -> bool {
    version().starts_with("Redis server v=7.")
}

/// As in `Redis server v=7.0.15 sha=…` or `Valkey server v=9.1.2 sha=…`.
pub(super) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let output = Command::new(binary())
            .arg0("redis-server")
            .arg("--version")
            .output();
        let output = output.unwrap_or_else(|e| panic!("{}: {e}", binary().display()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    })
}

/// The server's binary. `tests/run.sh` names it; without that, it is looked up here by the same
/// rule. Debian's redis-tools installs it as redis-check-rdb, and the name it is called by decides
/// what it does.
fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = env::var_os("FAIRLOCK_TEST_SERVER") {
            return PathBuf::from(named);
        }
        let path = env::var_os("PATH").unwrap_or_default();
        ["redis-server", "redis-check-rdb"]
            .iter()
            .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)))
            .find(|file| {
                fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
            })
            .expect("no redis-server here: run tests/run.sh, which installs it or says how")
    })
}
