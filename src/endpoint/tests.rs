use super::*;

/// The logins of an endpoint, the sentinels' first: user, password, database, and whether TLS is
/// on.
fn logins(endpoint: impl Into<Endpoint>) -> Vec<(Option<String>, Option<String>, i64, bool)> {
    let topology = match endpoint.into().0 {
        Location::Url(url) => parse_url(&url),
        Location::Typed(topology) => *topology,
        #[cfg(feature = "memory")]
        Location::Memory(_) => panic!("it has no login"),
    };
    let logins = match topology.expect("it is valid") {
        Topology::Single(server) => vec![server.login],
        Topology::Sentinel(settings) => vec![settings.sentinel_login, settings.login],
        Topology::Cluster(settings) => vec![settings.login],
        Topology::Quorum(servers) => servers.into_iter().map(|server| server.login).collect(),
    };
    logins
        .into_iter()
        .map(|login| {
            let is_encrypted = login.tls.is_some();
            (login.user, login.password, login.database, is_encrypted)
        })
        .collect()
}

#[test]
fn a_url_has_the_same_login_as_its_typed_form() {
    let server = Endpoint::server("a", 1)
        .user("u")
        .password("p#1")
        .database(2);
    assert_eq!(logins("redis://u:p%231@a:1/2"), logins(server.clone()));
    assert_eq!(logins("unix:///s?user=u&pass=p%231&db=2"), logins(server));
    let password = Endpoint::server("a", 1).password("p:1");
    assert_eq!(logins("redis://:p%3A1@a"), logins(password.clone()));
    assert_eq!(logins("redis://:p:1@a"), logins(password));
    // A call adds to a URL that is not complete.
    let added = Endpoint::from("redis://u@a:1/2").password("p#1");
    assert_eq!(logins("redis://u:p%231@a:1/2"), logins(added));
    let sentinel = Endpoint::sentinel("m", [("a", 1)]).user("u").password("p");
    let url = "redis-sentinel://u:p@a/m/2";
    assert_eq!(logins(url), logins(sentinel.clone().database(2)));
    let url = "redis-sentinel://u:p@a/m?sentinelUsername=s&sentinelPassword=q%26";
    let finder = sentinel.sentinel_user("s").sentinel_password("q&");
    assert_eq!(logins(url), logins(finder));
    let cluster = Endpoint::cluster([("a", 1)]).user("u").password("p");
    assert_eq!(logins("redis-cluster://u:p@a"), logins(cluster));
}

#[test]
#[cfg(feature = "tls")]
fn tls_is_for_all_servers_of_an_endpoint() {
    let (server, cluster) = (Endpoint::server("a", 1), Endpoint::cluster([("a", 1)]));
    let sentinel = Endpoint::sentinel("m", [("a", 1)]);
    for (url, typed) in [
        ("rediss://a", logins(server.tls())),
        ("valkeys://a", logins(Endpoint::from("rediss://b"))),
        ("rediss-sentinel://a/m", logins(sentinel.tls())),
        ("valkeys-cluster://a", logins(cluster.tls())),
    ] {
        assert!(typed.iter().all(|login| login.3), "{url}");
        assert_eq!(logins(url), typed, "{url}");
    }
}

#[test]
fn zone_of_a_link_local_address_goes_through_a_url_and_back() {
    for (url, shown) in [
        ("redis://[fe80::7%25lo]:7", "redis://[fe80::7%25lo]:7"),
        (
            "redis://[FE80::0007%eth0.1]",
            "redis://[fe80::7%25eth0.1]:6379",
        ),
        (
            "redis-cluster://u:p@[fe80::7%25lo],h",
            "redis-cluster://[fe80::7%25lo]:6379,h:6379",
        ),
        (
            "redis-sentinel://h/m?node=[fe80::7%25lo]:1",
            "redis-sentinel://h:26379,[fe80::7%25lo]:1/m",
        ),
    ] {
        for text in [url, shown] {
            let endpoint = Endpoint::from(text);
            endpoint.topology().expect(text);
            assert_eq!(endpoint.to_string(), shown);
        }
    }
    for typed in [
        Endpoint::server("fe80::7%lo", 7),
        Endpoint::server("[fe80::7%lo]", 7),
    ] {
        let topology = typed.topology().expect("it is valid");
        assert_eq!(format!("{topology}"), "[fe80::7%lo]:7");
        assert_eq!(typed.to_string(), "redis://[fe80::7%25lo]:7");
    }
}

#[test]
fn server_at_a_link_local_address_names_others_on_its_link() {
    let asked = tcp("fe80::7%lo", 1);
    for (asked, host, named) in [
        (&asked, "fe80::8", "[fe80::8%lo]:2"),
        (&asked, "fe80::8%eth0", "[fe80::8%eth0]:2"),
        (&asked, "", "[fe80::7%lo]:2"),
        (&asked, "2001:db8::8", "[2001:db8::8]:2"),
        (&asked, "h", "h:2"),
        (&tcp("h", 1), "fe80::8", "[fe80::8]:2"),
        (&tcp("h", 1), "?", "h:2"),
    ] {
        assert_eq!(Address::named_by(asked, host, 2).to_string(), named);
    }
}
