//! Commands of a program's own, on the servers of its locks. On Redis alone: the memory of this process
//! has no servers.

use std::time::{Duration, Instant};

use fairlock::servers::redis::{self, Value, cmd};
use fairlock::{
    Error, LockManager,
    endpoint::Endpoint,
    servers::{Server as Settings, ServerConnection},
};

use crate::fixtures::T;
use crate::support::server::free_address;
use crate::support::{SLACK, Server};

/// The time of a command that is answered, on a loaded machine.
const PATIENT: Duration = Duration::from_secs(20);

fn server_of(endpoint: impl Into<Endpoint>) -> Settings {
    let servers = LockManager::builder(endpoint).servers();
    servers.expect("the URL is valid").named().remove(0)
}

fn open(url: &str) -> ServerConnection {
    server_of(url).open(&[], PATIENT).expect("it is there").0
}

fn text(reply: &Value) -> String {
    redis::from_redis_value_ref(reply).expect("a text")
}

#[test]
fn own_commands_run_with_the_login_and_database_of_the_url() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@{}/3", server.addr());
    let (mut connection, first) = server_of(&url)
        .open(&[cmd("CLIENT").arg("INFO").clone()], PATIENT)
        .expect("it is there");
    assert!(text(&first[0]).contains(" db=3 "), "{first:?}");
    let commands = [
        cmd("SET").arg("a").arg(1).clone(),
        cmd("GET").arg("a").clone(),
    ];
    let replies = connection.run(&commands, PATIENT).expect("two replies");
    assert_eq!(text(&replies[1]), "1");
    // Without a database, the login alone goes first.
    let url = format!("redis://:secret@{}", server.addr());
    let replies = open(&url).run(&commands[1..], PATIENT);
    assert_eq!(replies.expect("a reply"), [Value::Nil]);
}

#[test]
fn refused_command_is_a_reply_and_a_refused_login_is_an_error() {
    let server = Server::tcp_with(&["--requirepass", "secret"]);
    let to = |login: &str| server_of(format!("redis://{login}{}", server.addr()));
    let unknown = [cmd("NO-SUCH-COMMAND"), cmd("PING")];
    let (mut connection, first) = to(":secret@").open(&unknown, PATIENT).expect("it is there");
    assert!(matches!(
        first[..],
        [Value::ServerError(_), Value::SimpleString(_)]
    ));
    let replies = connection.run(&unknown, PATIENT).expect("two replies");
    assert!(matches!(replies[0], Value::ServerError(_)), "{replies:?}");
    let refused = to(":wrong@").open(&[], PATIENT).unwrap_err();
    assert!(matches!(&refused, Error::Refused { code, .. } if code == "WRONGPASS"));
    assert!(
        refused.to_string().contains(&server.addr().to_string()),
        "{refused}"
    );
}

#[test]
fn own_commands_end_within_their_timeout() {
    let server = Server::tcp();
    let mut connection = open(&server.url());
    server.stop();
    let bounded = |work: &mut dyn FnMut() -> Result<(), Error>| {
        let started = Instant::now();
        let error = work().unwrap_err();
        let took = started.elapsed();
        assert!(took >= T && took < T + SLACK, "{took:?}: {error}");
        let Error::Unavailable {
            waited,
            server: named,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert!(
            *waited >= T && named.as_deref() == Some(&*server.addr().to_string()),
            "{error:?}"
        );
    };
    bounded(&mut || connection.run(&[cmd("PING")], T).map(drop));
    bounded(&mut || connection.receive(T).map(drop));
    let settings = server_of(server.url());
    bounded(&mut || settings.open(&[cmd("PING")], T).map(drop));
    server.cont();
    let nowhere = server_of(Endpoint::server("127.0.0.1", free_address().port()));
    let refused = nowhere.open(&[], PATIENT);
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
}

#[test]
#[cfg(feature = "memory")]
fn memory_has_no_servers() {
    let refused = LockManager::builder(&fairlock::memory::Memory::new()).servers();
    assert!(matches!(refused, Err(Error::Misused { .. })), "{refused:?}");
}

#[test]
fn message_of_a_channel_is_received() {
    let server = Server::start();
    let settings = server_of(server.url());
    let subscribe = cmd("SUBSCRIBE").arg("news").clone();
    let (mut listening, _) = settings.open(&[subscribe], PATIENT).expect("it is there");
    server.query::<usize>(&["PUBLISH", "news", "hello"]);
    let message = listening.receive(PATIENT).expect("a message");
    let parts: Vec<String> = redis::from_redis_value(message).expect("three texts");
    assert_eq!(parts, ["message", "news", "hello"]);
}
