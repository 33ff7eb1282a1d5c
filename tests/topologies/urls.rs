//! URLs and typed endpoints of every topology. A URL is the same as its typed form, and the refusal of
//! a bad one names the part that is wrong.

use fairlock::{Error, LockManager, Misuse, endpoint::Endpoint};

const SECRET: &str = "hunter2-pa55phrase";

/// An endpoint, as `Debug` shows it.
fn shown(endpoint: impl Into<Endpoint>) -> String {
    format!("{:?}", endpoint.into())
}

#[test]
fn a_url_names_the_same_servers_as_its_typed_form() {
    let single = |host, port| Endpoint::server(host, port);
    let sentinel = |hosts: &[(&str, u16)]| Endpoint::sentinel("mymaster", hosts.to_vec());
    let cluster = |hosts: &[(&str, u16)]| Endpoint::cluster(hosts.to_vec());
    let same = [
        ("redis://host", single("host", 6379)),
        ("valkey://host:1/", single("host", 1)),
        (" REDIS://[::1]:1/2 ", single("::1", 1)),
        ("redis://[::1]", single("[::1]", 6379)),
        ("redis+unix:///tmp/s", Endpoint::unix("/tmp/s")),
        ("valkey+unix:///tmp/s", Endpoint::unix("/tmp/s")),
        ("unix:///tmp/a%20b?db=1", Endpoint::unix("/tmp/a b")),
        ("redis-sentinel://a/mymaster", sentinel(&[("a", 26379)])),
        (
            "redis-sentinel://u:p@a:1,b/mymaster/3",
            sentinel(&[("a", 1), ("b", 26379)]),
        ),
        (
            "valkey-sentinel://a:1/3?sentinelServiceName=mymaster&node=b:2&node=c:3",
            sentinel(&[("a", 1), ("b", 2), ("c", 3)]),
        ),
        (
            "redis-sentinel://a,[fe80::1]:2,a/mymaster?node=%5B::2%5D:3",
            sentinel(&[("a", 26379), ("fe80::1", 2), ("::2", 3)]),
        ),
        ("redis-cluster://a", cluster(&[("a", 6379)])),
        (
            "valkey-cluster://u:p@a:1,b/0",
            cluster(&[("a", 1), ("b", 6379)]),
        ),
        (
            "redis-cluster://a:1?node=b:2&node=[::1]:3",
            cluster(&[("a", 1), ("b", 2), ("::1", 3)]),
        ),
    ];
    for (url, typed) in same {
        let expected = shown(typed);
        assert!(!expected.contains("not valid"), "{url}");
        assert_eq!(shown(url), expected, "{url}");
        // And what `Display` shows names them, too.
        let displayed = Endpoint::from(url).to_string();
        assert_eq!(shown(&displayed), expected, "{displayed}");
        assert!(!displayed.contains("p@"), "{displayed}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn several_urls_in_one_text_are_a_quorum() {
    let urls = [
        "redis://:p@a",
        "rediss://b:1/2",
        "redis+unix:///tmp/a%20b?db=1",
    ];
    let typed = shown(Endpoint::quorum(urls));
    for text in [urls.join(" "), format!("\t{}  ", urls.join(" \n "))] {
        assert_eq!(shown(&text), typed);
        let endpoint = Endpoint::from(&text);
        assert_eq!(
            endpoint.to_string(),
            "redis://a:6379 rediss://b:1/2 redis+unix:///tmp/a%20b?db=1"
        );
    }
    assert_eq!(Endpoint::from("nonsense").to_string(), "not a URL");
}

#[test]
fn error_about_several_urls_says_which_one() {
    let list = |last: &str| format!("redis://a redis://:{SECRET}@b {last}");
    for (text, expected) in [
        (list(""), "3 or 5 servers, each of its own; not 2"),
        (list("redis://a"), "a:6379 is twice"),
        (list("redis://c/x"), "URL 3 of 3: "),
        (list("redis://c/x"), "its database is not a number"),
        (list("http://c"), "URL 3 of 3: "),
        (
            list("redis-cluster://c"),
            "URL 3 of 3: the servers of a quorum",
        ),
        (list("redis-cluster://c"), "this is cluster c:6379"),
        (
            format!("redis://:{SECRET}@a,redis://b,redis://c"),
            "are spaces",
        ),
    ] {
        let refused = LockManager::connect(&text).expect_err("it is refused");
        let message = refused.to_string();
        assert!(message.contains(expected), "{text}: {message}");
        assert!(!message.contains(SECRET), "{message}");
    }
}

#[test]
fn a_bad_url_is_refused_by_its_wrong_part() {
    let bad = [
        ("redis://", "host is missing"),
        ("redis://:p@/1", "host is missing"),
        ("redis://a:b", "host did not parse: a port is a number"),
        ("redis://a:70000", "from 1 to 65535"),
        ("redis://a:1:2", "an IPv6 address is in brackets"),
        ("redis://::1", "an IPv6 address is in brackets"),
        ("redis://2001:db8::1", "an IPv6 address is in brackets"),
        ("redis-cluster://a,::1:7", "an IPv6 address is in brackets"),
        ("redis://a b", "it has white space"),
        ("redis-sentinel://a, b/m", "it has white space"),
        ("redis://a;b", "letters, digits, dots and hyphens"),
        (
            "redis://\u{f6}.example",
            "letters, digits, dots and hyphens",
        ),
        ("redis://a%20b", "letters, digits, dots and hyphens"),
        ("redis://a;redis://b;redis://c", "it holds several URLs"),
        ("redis://a/0,redis://b", "it holds several URLs"),
        ("redis://:p@a;rediss://:p@b", "it holds several URLs"),
        ("redis+unix://s", "third slash"),
        ("redis://a:0", "1 to 65535"),
        ("redis://[::g]", "no IPv6 address is in the brackets"),
        ("redis://0.0.0.0", "0.0.0.0 is every address"),
        ("redis://[::]:1", ":: is every address"),
        ("redis://a/-1", "its database is not a number"),
        ("redis://u@a", "a user needs a password"),
        ("redis://:%FF@a", "password is not valid UTF-8"),
        ("redis://a,b", "several hosts"),
        ("redis://a?node=b", "parameter \"node\""),
        ("redis+sentinel://a/m", "redis-sentinel://"),
        ("redis+unix://u:p@localhost/s", "?user=u&pass=p"),
        ("redis+unix:///s?pass=1&pass=2", "\"pass\" twice"),
        ("redis-sentinel://a", "it names no service"),
        ("redis-sentinel://a/0", "it names no service"),
        ("redis-sentinel://a/m/x", "its database is not a number"),
        ("redis-sentinel://a/m/0/1", "its database is not a number"),
        (
            "redis-sentinel://a/m?sentinelServiceName=n",
            "name two services",
        ),
        (
            "redis-sentinel://a,,b/m",
            "host (number 2 of its servers) is missing",
        ),
        (
            "redis-sentinel://a/m?node=b:c",
            "node (number 2 of its servers) did not parse",
        ),
        (
            "redis-sentinel://a/m?node=b/1",
            "node (number 2 of its servers) did not parse",
        ),
        (
            "redis-sentinel://a/m?sentinelUsername=u",
            "a user needs a password",
        ),
        ("redis-sentinel://a/m?password=1", "parameter \"password\""),
        ("redis-sentinel://a/%0A", "without control characters"),
        ("redis-cluster://a/1", "database 0 alone"),
        ("redis-cluster://a/m", "its database is not a number"),
        (
            "redis-cluster://a?sentinelServiceName=m",
            "parameter \"sentinelServiceName\"",
        ),
    ];
    for (url, why) in bad {
        let error = LockManager::connect(url).unwrap_err();
        let Error::Misused {
            misuse: Misuse::Setting { name: "url", .. },
            message,
            ..
        } = &error
        else {
            panic!("{url}: {error:?}");
        };
        assert!(message.contains(why), "{url}: {message}");
        let form = url.split_once("://").expect("a scheme").0;
        let form = if form.contains('-') { form } else { "redis" };
        assert!(
            message.starts_with(&format!("{form}://")),
            "{url}: {message}"
        );
    }
}

#[test]
#[cfg(not(feature = "tls"))]
fn a_url_with_tls_is_refused_without_the_feature() {
    for (url, expected) in [
        ("rediss://a", "rediss://"),
        ("valkeys://a", "valkeys://"),
        ("rediss-sentinel://a/m", "rediss-sentinel://"),
        ("valkeys-sentinel://a/m", "valkeys-sentinel://"),
        ("rediss-cluster://a", "rediss-cluster://"),
        ("redis://a rediss://b redis://c", "URL 2 of 3: rediss://"),
    ] {
        let error = LockManager::connect(url).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("url: {expected} needs the feature `tls` of fairlock")
        );
    }
    let error = LockManager::connect(Endpoint::server("a", 1).tls()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "server: TLS needs the feature `tls` of fairlock"
    );
}

#[test]
fn a_typed_endpoint_is_checked_at_build() {
    let servers =
        |count: u16| Endpoint::quorum((1..=count).map(|port| Endpoint::server("a", port)));
    let bad: [(Endpoint, &str, &str); 12] = [
        (Endpoint::server("", 1), "server", "host is missing"),
        (Endpoint::server("a", 0), "server", "1 to 65535"),
        (
            Endpoint::server("redis://a", 1),
            "server",
            "without a scheme",
        ),
        (Endpoint::server("::", 1), "server", "every address"),
        (Endpoint::unix(""), "server", "path is missing"),
        (
            Endpoint::server("a", 1).user("u"),
            "server",
            "needs a password",
        ),
        (
            Endpoint::quorum(["redis-cluster://a", "redis://b", "redis://c"]),
            "url",
            "the URL of one server",
        ),
        (
            Endpoint::sentinel("", [("a", 1)]),
            "sentinel",
            "the service",
        ),
        (
            Endpoint::sentinel("m", [("a", 1); 0]),
            "sentinel",
            "at least one sentinel",
        ),
        (
            Endpoint::sentinel("m", [("a", 1)]).sentinel_user("u"),
            "sentinel",
            "needs a password",
        ),
        (
            Endpoint::cluster([("a", 1); 0]),
            "cluster",
            "at least one node",
        ),
        (
            servers(4),
            "quorum",
            "3 or 5 servers, each of its own; not 4",
        ),
    ];
    for (endpoint, what, why) in bad {
        assert_refused(endpoint, what, why);
    }
    let twice = ["redis://a:1", "redis://b:1", "redis://a:1/2"];
    assert_refused(Endpoint::quorum(twice), "quorum", "a:1 is twice");
    let unread = ["redis://a", "redis://b", "redis://c:d"];
    assert_refused(Endpoint::quorum(unread), "url", "from 1 to 65535");
}

#[track_caller]
fn assert_refused(endpoint: impl Into<Endpoint>, what: &str, why: &str) {
    match LockManager::connect(endpoint).unwrap_err() {
        Error::Misused {
            misuse: Misuse::Setting { name, .. },
            message,
            ..
        } => {
            assert_eq!(name, what, "{message}");
            assert!(message.contains(why), "{message}");
        }
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_quorum_is_a_list_of_urls_or_servers() {
    let urls = Endpoint::quorum(["redis://a", "redis://b:1", "redis+unix:///c"]);
    let servers = Endpoint::quorum([
        Endpoint::server("a", 6379),
        Endpoint::server("b", 1),
        Endpoint::unix("/c"),
    ]);
    assert_eq!(shown(urls), "Endpoint(quorum a:6379,b:1,/c)");
    assert_eq!(format!("{servers:?}"), "Endpoint(quorum a:6379,b:1,/c)");
}

/// A character that is not percent-encoded ends the part that holds the password.
#[test]
fn a_refused_url_never_shows_what_may_be_a_password() {
    let bad = [
        format!("redis-sentinel://u:1/{SECRET}@a/m"),
        format!("redis-sentinel://u:1/{SECRET}@a"),
        format!("redis-sentinel://u:1?node={SECRET}@a/m"),
        format!("redis-sentinel://u:{SECRET}@a:b/m"),
        format!("redis-sentinel://a/m?sentinelPassword=1&{SECRET}"),
        format!("redis-sentinel://a/m?sentinelPassword=1#{SECRET}"),
        format!("redis-cluster://u:1/{SECRET}@a"),
        format!("redis-cluster://u:{SECRET}@a,b:c"),
        format!("redis-cluster://:1&{SECRET}?{SECRET}@a"),
        format!("redis+sentinel://u:{SECRET}@a/m"),
        format!("redis://u:{SECRET}@a,b"),
        format!("redis+unix://u:{SECRET}@localhost/s"),
    ];
    for url in bad {
        let error = LockManager::connect(&url).unwrap_err();
        let all = format!("{error} {error:?} {:?}", Endpoint::from(&url));
        assert!(!all.contains(SECRET), "{url}: {all}");
    }
}

#[test]
fn no_endpoint_shows_a_password() {
    let server = Endpoint::server("a", 1).user("u").password(SECRET);
    let sentinel = Endpoint::sentinel("m", [("a", 1)])
        .user("u")
        .password(SECRET)
        .sentinel_user("s")
        .sentinel_password(SECRET);
    let cluster = Endpoint::cluster([("a", 1)]).user("u").password(SECRET);
    let quorum = Endpoint::quorum([server.clone(), Endpoint::unix("/s").password(SECRET)]);
    let mut all = format!("{server:?} {sentinel:?} {cluster:?} {quorum:?}");
    let urls = [
        format!("redis://u:{SECRET}@a"),
        format!("redis-sentinel://u:{SECRET}@a/m?sentinelPassword={SECRET}"),
        format!("redis-cluster://:{SECRET}@a,b"),
    ];
    for endpoint in urls
        .iter()
        .map(Endpoint::from)
        .chain([server, sentinel, cluster, quorum])
    {
        all.push_str(&format!(
            "{endpoint:?} {:?}",
            LockManager::builder(endpoint.clone())
        ));
    }
    assert!(!all.contains(SECRET), "{all}");
}
