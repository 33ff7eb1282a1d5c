//! The feature `metrics`: its numbers are those of `Stats`, docs/METRICS.md has all of its names,
//! and docs/grafana.json shows them. A real exporter renders them. On both stores, if it is about what
//! happens there. The names are those of a manager on Redis.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::{Builder, LockManager, LockOptions, Waiter};
use fairlock_tests::ROOT;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use serde_json::Value;

use crate::backend::{Backend, on_both_stores};
use crate::fixtures::{SOON, TTL, build, builder, manager, steady, warm_up};
use crate::sums::Sums;
use crate::support::{Server, until};

on_both_stores! {
    recorder_may_use_the_manager,
    recorder_that_panics_loses_its_numbers_and_nothing_else,
    what_is_emitted_is_what_stats_count,
    requests_are_emitted_while_only_fixed_leases_are_taken,
    managers_with_one_recorder_add_up,
    oldest_wait_and_hold_are_shown_while_they_last,
    oldest_hold_of_a_row_is_that_of_one_guard,
}

/// A recorder with buckets, as the example has it.
fn recorder() -> PrometheusRecorder {
    let buckets = PrometheusBuilder::new().set_buckets(&[0.001, 0.1, 10.0]);
    buckets.expect("there are some").build_recorder()
}

fn build_under(recorder: &PrometheusRecorder, builder: Builder) -> LockManager {
    metrics::with_local_recorder(recorder, || build(builder))
}

/// The exporter's lines of one metric.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    kind: String,
    /// Its labels, and the values of each. Without `le`, which each bucket has.
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// All metrics that the exporter shows.
fn shown(exporter: &PrometheusHandle) -> BTreeMap<String, Shown> {
    let mut metrics: BTreeMap<String, Shown> = BTreeMap::new();
    for line in exporter.render().lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') && !line.is_empty() {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let name = base_of(name, |name| metrics.contains_key(name));
            let metric = metrics.entry(name).or_default();
            for pair in labels.trim_end_matches('}').split(',') {
                if let Some((label, value)) = pair.split_once('=')
                    && label != "le"
                {
                    let values = metric.labels.entry(label.to_owned()).or_default();
                    values.insert(value.trim_matches('"').to_owned());
                }
            }
        }
    }
    metrics
}

/// The name of the metric of a series: a histogram has three.
fn base_of(series: &str, is_known: impl Fn(&str) -> bool) -> String {
    let of_histogram = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|suffix| series.strip_suffix(suffix).filter(|base| is_known(base)));
    of_histogram.unwrap_or(series).to_owned()
}

/// The value of one series.
#[track_caller]
fn value(page: &str, series: &str) -> f64 {
    let line = format!("{series} ");
    let found = page.lines().find_map(|shown| shown.strip_prefix(&line));
    let found = found.unwrap_or_else(|| panic!("no {series} in\n{page}"));
    found.parse().unwrap()
}

fn doc(file: &str) -> String {
    let path = format!("{ROOT}/docs/{file}");
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The texts in code style in a cell of a table.
fn code_in(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn documented_metrics_are_those_that_are_emitted() {
    let server = Server::start();
    let recorder = recorder();
    let _manager = build_under(&recorder, builder(server.url()));
    let text = doc("METRICS.md");
    let mut documented = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `fairlock_")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, kind, unit, labels, meaning, _, _] = cells[..] else {
            panic!("six cells: {row}")
        };
        let name = code_in(name)[0].to_owned();
        assert!(!meaning.is_empty(), "{row}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{row}");
        assert_eq!(name.ends_with("_seconds"), unit == "seconds", "{row}");
        let mut words = code_in(labels).into_iter().map(str::to_owned);
        let labels = words.next().map(|label| (label, words.collect()));
        let kind = kind.to_owned();
        let labels = labels.into_iter().collect();
        assert!(
            documented.insert(name, Shown { kind, labels }).is_none(),
            "twice: {row}"
        );
    }
    assert_eq!(documented, shown(&recorder.handle()));
}

#[test]
fn dashboard_shows_each_metric_and_no_other() {
    let server = Server::start();
    let recorder = recorder();
    let manager = build_under(&recorder, builder(server.url()));
    drop(manager.lock("k").unwrap());
    let emitted = shown(&recorder.handle());
    let dashboard: Value = serde_json::from_str(&doc("grafana.json")).expect("it is JSON");
    let mut in_panels = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let legend = target["legendFormat"].as_str().unwrap();
            let names = check_query(query, legend, &emitted);
            assert!(!names.is_empty(), "{title}: {query}");
            in_panels.extend(names);
        }
    }
    let all: BTreeSet<String> = emitted.keys().cloned().collect();
    assert_eq!(in_panels, all, "each metric is in a panel");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let is_source = |variable: &&Value| variable["name"] == "datasource";
    let source = variables.iter().find(is_source).expect("a data source");
    assert_eq!(source["type"], "datasource");
    assert_eq!(source["query"], "prometheus");
    for variable in variables.iter().filter(|variable| !is_source(variable)) {
        let query = variable["definition"].as_str().unwrap();
        assert_eq!(check_query(query, "", &emitted).len(), 1, "{query}");
    }
}

#[test]
fn alerts_name_metrics_that_are_emitted() {
    let server = Server::start();
    let recorder = recorder();
    let _manager = build_under(&recorder, builder(server.url()));
    let emitted = shown(&recorder.handle());
    let text = doc("METRICS.md");
    let rules = text.split("```").find(|code| code.starts_with("yaml"));
    let rules = rules.expect("there are rules");
    let exprs = rules.split("expr:").skip(1).map(|rule| {
        let ends = ["labels:", "for:"].map(|end| rule.find(end).unwrap_or(rule.len()));
        &rule[..ends[0].min(ends[1])]
    });
    let names: Vec<String> = exprs
        .flat_map(|expr| check_query(expr, "", &emitted))
        .collect();
    assert!(names.len() >= 5, "{names:?}");
}

/// The metrics of a query. Each must be emitted, and so must its labels and their values.
#[track_caller]
fn check_query(query: &str, legend: &str, emitted: &BTreeMap<String, Shown>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut labels = BTreeMap::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = query;
    while let Some(at) = rest.find("fairlock_") {
        let name = &rest[at..];
        let name = &name[..name.find(|c| !is_word(c)).unwrap_or(name.len())];
        let base = base_of(name, |base| emitted.contains_key(base));
        let metric = emitted
            .get(&base)
            .unwrap_or_else(|| panic!("{name} is not emitted: {query}"));
        assert_eq!(
            base != name,
            metric.kind == "histogram",
            "{name}: the series of a histogram: {query}"
        );
        labels.extend(metric.labels.clone());
        names.insert(base);
        rest = &rest[at + name.len()..];
    }
    let is_known =
        |label: &str| labels.contains_key(label) || ["le", "job", "instance"].contains(&label);
    for (open, close) in [("by (", ')'), ("{", '}')] {
        for group in query.split(open).skip(1) {
            let group = &group[..group.find(close).expect("it is closed")];
            for part in group.split(',').map(str::trim) {
                let end = part.find(|c| !is_word(c)).unwrap_or(part.len());
                let (label, matcher) = part.split_at(end);
                assert!(is_known(label), "{label:?}: {query}");
                if let Some(values) = labels.get(label)
                    && let Some((_, value)) = matcher.split_once('"')
                {
                    let value = value.trim_end_matches('"');
                    assert!(values.contains(value), "{value:?}: {query}");
                }
            }
        }
    }
    for label in legend.split("{{").skip(1) {
        let label = label.split("}}").next().unwrap();
        assert!(
            query.contains(&format!("by ({label})")),
            "{legend}: {query}"
        );
    }
    names
}

fn what_is_emitted_is_what_stats_count(on: &Backend) {
    let recorder = recorder();
    let ours = build_under(&recorder, steady(on));
    let other = manager(on);
    warm_up(&ours);
    let held = other.lock("k").unwrap();
    assert!(ours.try_lock("k").unwrap().is_none());
    let waiter = ours.enqueue("k").unwrap();
    drop(ours.enqueue("k").unwrap());
    held.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    let forced = ours.lock("forced").unwrap();
    assert!(ours.force_release("forced", forced.fence()).unwrap());
    assert!(forced.renew().is_err());
    until(SOON, "the loss counts", || ours.stats().losses() == 1);
    drop(forced);
    let unlocked = ours.lock("unlocked").unwrap();
    assert!(ours.force_release("unlocked", unlocked.fence()).unwrap());
    assert!(unlocked.unlock().is_err());
    assert_eq!(ours.stats().losses_forced, 2);
    let waiting = ours.enqueue("k").unwrap();
    on.pass(Duration::from_millis(5));

    let exporter = recorder.handle();
    // The renewal thread sends something now and then. So both are read until they are of the same
    // moment.
    until(SOON, "both are the same", || {
        let before = ours.stats();
        let page = exporter.render();
        let after = ours.stats();
        format!("{before:?}") == format!("{after:?}") && is_the_same(&page, &after)
    });
    let stats = ours.stats();
    assert_eq!((stats.held, stats.waiting), (1, 1), "{stats}");
    drop((waiting, guard));
    until(SOON, "nothing is held", || {
        let page = exporter.render();
        value(&page, "fairlock_held") == 0.0 && value(&page, "fairlock_waiting") == 0.0
    });
}

/// The renewal thread, which emits them, has nothing to do for an hour.
fn requests_are_emitted_while_only_fixed_leases_are_taken(on: &Backend) {
    let recorder = recorder();
    let ours = build_under(&recorder, builder(on));
    let hour = LockOptions::new().fixed_lease(Duration::from_secs(3600));
    let ours = ours.with(hour);
    let _held = ours.lock("held").unwrap();
    let exporter = recorder.handle();
    let shown = || value(&exporter.render(), "fairlock_requests_total");
    for _ in 0..3 {
        let before = shown();
        ours.lock("k").unwrap().unlock().unwrap();
        until(SOON, "both requests are emitted", || {
            shown() >= before + 2.0
        });
    }
}

/// Whether the exporter shows these numbers.
fn is_the_same(page: &str, stats: &fairlock::stats::Stats) -> bool {
    let outcome = |end: &str| format!("fairlock_acquisitions_total{{outcome=\"{end}\"}}");
    let reason = |reason: &str| format!("fairlock_losses_total{{reason=\"{reason}\"}}");
    let renewals = |end: &str| format!("fairlock_renewals_total{{outcome=\"{end}\"}}");
    let total = |what: &str| format!("fairlock_{what}_total");
    let counts = [
        (outcome("at_once"), stats.acquisitions_at_once),
        (outcome("after_wait"), stats.acquisitions_after_wait),
        (outcome("timed_out"), stats.acquisitions_timed_out),
        (outcome("cancelled"), stats.acquisitions_cancelled),
        (outcome("failed"), stats.acquisitions_failed),
        (reason("expired"), stats.losses_expired),
        (reason("not_owner"), stats.losses_not_owner),
        (reason("max_hold"), stats.losses_max_hold),
        (reason("forced"), stats.losses_forced),
        (reason("shutdown"), stats.losses_shutdown),
        (renewals("confirmed"), stats.renewals_confirmed),
        (renewals("failed"), stats.renewals_failed),
        (total("handovers"), stats.handovers),
        (total("local_handovers"), stats.local_handovers),
        (total("requeues"), stats.requeues),
        (total("dead_waiters"), stats.dead_waiters),
        (total("background_releases"), stats.background_releases),
        (total("retries"), stats.retries),
        (total("connects"), stats.connects),
        (total("requests"), stats.requests),
        ("fairlock_held".to_owned(), stats.held),
        ("fairlock_waiting".to_owned(), stats.waiting),
    ];
    let times = [
        ("wait", stats.granted()),
        // Each guard ends once.
        ("hold", stats.granted() - stats.held),
        ("connection_wait", stats.connection_waits),
    ];
    let longest = [
        ("wait", stats.longest_wait),
        ("hold", stats.longest_hold),
        ("renewal_lateness", stats.latest_renewal),
    ];
    let is_shown = |(series, count): &(String, u64)| value(page, series) == *count as f64;
    counts.iter().all(is_shown)
        && times.iter().all(|(name, count)| {
            value(page, &format!("fairlock_{name}_seconds_count")) == *count as f64
        })
        && longest.iter().all(|(name, longest)| {
            value(page, &format!("fairlock_{name}_seconds_sum")) >= longest.as_secs_f64()
        })
        // A mean of connection waits may lose a nanosecond.
        && (value(page, "fairlock_connection_wait_seconds_sum")
            - stats.connection_wait_time.as_secs_f64())
        .abs()
            < 1e-6
}

fn managers_with_one_recorder_add_up(on: &Backend) {
    let recorder = recorder();
    let [first, second] = [(); 2].map(|()| build_under(&recorder, builder(on)));
    let exporter = recorder.handle();
    let held = || value(&exporter.render(), "fairlock_held");
    let guards = [first.lock("a").unwrap(), second.lock("b").unwrap()];
    assert_eq!(held(), 2.0);
    let limited = first.with(LockOptions::new().max_hold(Duration::from_secs(60)));
    let third = limited.lock("c").unwrap();
    assert_eq!(held(), 3.0);
    let [one, two] = guards;
    drop(one);
    assert_eq!(held(), 2.0);
    drop(second);
    assert_eq!(held(), 2.0, "a guard outlives its handle");
    drop((two, third));
    assert_eq!(held(), 0.0);
    let granted = "fairlock_acquisitions_total{outcome=\"at_once\"}";
    assert_eq!(value(&exporter.render(), granted), 3.0);
}

fn oldest_wait_and_hold_are_shown_while_they_last(on: &Backend) {
    let recorder = recorder();
    let [ours, second] = [(); 2].map(|()| build_under(&recorder, builder(on)));
    let exporter = recorder.handle();
    let oldest = |what: &str| {
        value(
            &exporter.render(),
            &format!("fairlock_oldest_{what}_seconds"),
        )
    };
    assert_eq!((oldest("wait"), oldest("hold")), (0.0, 0.0));

    let held = ours.lock("k").unwrap();
    let waiter = second.enqueue("k").unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| waiter.wait().unwrap());
        until(SOON, "both are shown, and grow", || {
            on.pass(Duration::from_millis(20));
            oldest("wait") > 0.1 && oldest("hold") > 0.1
        });
        let (wait_shown, hold_shown) = (oldest("wait"), oldest("hold"));
        until(SOON, "both grow", || {
            on.pass(Duration::from_millis(20));
            oldest("wait") > wait_shown && oldest("hold") > hold_shown
        });
        let second_hold = second.lock("younger").unwrap();
        let before = oldest("hold");
        until(SOON, "the older hold is shown", || {
            on.pass(Duration::from_millis(20));
            oldest("hold") > before
        });
        if on.server().is_some() {
            let most = began.elapsed() + SOON;
            assert!(oldest("hold") < most.as_secs_f64(), "no sum of both");
        }
        held.unlock().unwrap();
        drop(second_hold);
        drop(wait.join().unwrap());
    });
    until(SOON, "neither is shown", || {
        on.pass(Duration::from_millis(20));
        (oldest("wait"), oldest("hold")) == (0.0, 0.0)
    });
    let leaked = ours.lock("leaked").unwrap();
    until(SOON, "it is shown", || {
        on.pass(Duration::from_millis(20));
        oldest("hold") > 0.0
    });
    ours.shutdown(Duration::ZERO).unwrap();
    drop((leaked, ours));
    until(SOON, "a manager that has ended shows nothing", || {
        oldest("hold") == 0.0
    });
}

/// Many guards of one process may hold a lock in a row, in one grant.
fn oldest_hold_of_a_row_is_that_of_one_guard(on: &Backend) {
    let recorder = recorder();
    let ours = build_under(&recorder, builder(on));
    let ours = ours.with(LockOptions::new().local_handovers(1000));
    let exporter = recorder.handle();
    let oldest = || value(&exporter.render(), "fairlock_oldest_hold_seconds");
    let first = ours.lock("k").unwrap();
    until(SOON, "the first guard is shown", || {
        on.pass(Duration::from_millis(20));
        oldest() > 1.0
    });
    let next = ours.enqueue("k").unwrap();
    let before = oldest();
    drop(first);
    let _second = next.wait().unwrap();
    until(
        SOON,
        "the second guard is shown, and the first is not",
        || {
            on.pass(Duration::from_millis(5));
            let shown = oldest();
            shown > 0.0 && shown < before
        },
    );
}

/// A recorder that uses the manager at each event. If a mutex of ours were held there, it would
/// never return.
#[derive(Clone, Default)]
struct Meddler(Arc<Meddling>);

#[derive(Default)]
struct Meddling {
    manager: Mutex<Option<LockManager>>,
    /// It is granted while nobody waits with it.
    waiter: Mutex<Option<Waiter>>,
    events: AtomicU64,
    panics: AtomicBool,
}

thread_local! {
    static IS_MEDDLING: Cell<bool> = const { Cell::new(false) };
}

impl Meddler {
    fn meddle(&self) {
        self.0.events.fetch_add(1, Ordering::Relaxed);
        assert!(
            !self.0.panics.load(Ordering::Relaxed),
            "a recorder may panic"
        );
        // Its own events are no reason.
        if IS_MEDDLING.replace(true) {
            return;
        }
        let manager = self.0.manager.lock().unwrap().clone();
        if let Some(manager) = manager {
            Meddler::use_all(&manager);
        }
        // The state of a waiter.
        if let Ok(waiter) = self.0.waiter.try_lock()
            && let Some(waiter) = &*waiter
        {
            waiter.position();
        }
        IS_MEDDLING.set(false);
    }

    fn use_all(manager: &LockManager) {
        manager.stats();
        // The lane of the name, and the registry of waiters.
        for name in ["k", "meddled"] {
            let _ = manager.inspect(name);
        }
        drop(manager.try_lock("meddled"));
        drop(manager.enqueue("meddled"));
    }
}

impl metrics::CounterFn for Meddler {
    fn increment(&self, _: u64) {
        self.meddle();
    }

    fn absolute(&self, _: u64) {
        unreachable!("another manager may count on the same metric")
    }
}

impl metrics::GaugeFn for Meddler {
    fn increment(&self, _: f64) {
        self.meddle();
    }

    fn decrement(&self, _: f64) {
        self.meddle();
    }

    fn set(&self, _: f64) {
        unreachable!("another manager may count on the same metric")
    }
}

impl metrics::HistogramFn for Meddler {
    fn record(&self, _: f64) {
        self.meddle();
    }
}

impl metrics::Recorder for Meddler {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(Arc::new(self.clone()))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::from_arc(Arc::new(self.clone()))
    }

    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        metrics::Histogram::from_arc(Arc::new(self.clone()))
    }
}

fn recorder_may_use_the_manager(on: &Backend) {
    let recorder = Meddler::default();
    let ours = metrics::with_local_recorder(&recorder, || manager(on));
    let other = manager(on);
    *recorder.0.manager.lock().unwrap() = Some(ours.clone());
    let held = other.lock("k").unwrap();
    assert!(ours.try_lock("k").unwrap().is_none());
    let waiter = ours.enqueue("k").unwrap();
    drop(ours.enqueue("k").unwrap());
    held.unlock().unwrap();
    let guard = waiter.wait().unwrap();
    let forced = ours.lock("forced").unwrap();
    assert!(ours.force_release("forced", forced.fence()).unwrap());
    assert!(forced.renew().is_err());
    until(SOON, "the loss counts", || ours.stats().losses_forced == 1);
    until(SOON, "a renewal counts", || {
        on.pass(TTL / 3);
        ours.stats().renewals_confirmed > 0
    });
    let held = other.lock("granted").unwrap();
    *recorder.0.waiter.lock().unwrap() = Some(ours.enqueue("granted").unwrap());
    let before = ours.stats().handovers;
    held.unlock().unwrap();
    until(SOON, "the grant counts", || ours.stats().handovers > before);
    let waiting = ours.enqueue("k").unwrap();
    on.flush_all();
    until(SOON, "a waiter is queued again", || {
        on.pass(TTL / 3);
        ours.stats().requeues > 0
    });
    drop((guard, forced, waiting));
    assert!(recorder.0.events.load(Ordering::Relaxed) > 20);
    // Or the manager would live on: each has the other.
    let waiter = recorder.0.waiter.lock().unwrap().take();
    drop(waiter);
    recorder.0.manager.lock().unwrap().take();
}

fn recorder_that_panics_loses_its_numbers_and_nothing_else(on: &Backend) {
    let recorder = Meddler::default();
    let ours = metrics::with_local_recorder(&recorder, || manager(on));
    let other = manager(on);
    warm_up(&ours);
    recorder.0.panics.store(true, Ordering::Relaxed);
    let guard = ours.lock("k").unwrap();
    guard.unlock().unwrap();
    let guard = other.try_lock("k").unwrap().expect("it is released");
    let waiter = ours.enqueue("k").unwrap();
    guard.unlock().unwrap();
    drop(waiter.wait().unwrap());
    until(SOON, "it is released", || {
        other.try_lock("k").unwrap().is_some()
    });
    // The renewal thread, too, counts and goes on.
    let forced = ours.lock("forced").unwrap();
    assert!(other.force_release("forced", forced.fence()).unwrap());
    assert!(forced.renew().is_err());
    forced.lost().recv_timeout(SOON).unwrap();
    let kept = ours.lock("kept").unwrap();
    let before = ours.stats().renewals_confirmed;
    until(SOON, "a renewal counts", || {
        on.pass(TTL / 3);
        ours.stats().renewals_confirmed > before
    });
    kept.unlock().unwrap();
    let stats = ours.stats();
    assert_eq!((stats.held, stats.losses()), (1, 1), "{stats}");
    drop(forced);
    ours.shutdown(SOON).unwrap();
    assert!(recorder.0.events.load(Ordering::Relaxed) > 10);
}
