//! Checks of a server's memory: whether it may evict a lock, and whether it is full.

use super::Findings;
use super::answer::Answer;
use super::facts::NodeAnswers;

/// The policy under which a server refuses writes instead of evicting a lock.
const NO_EVICTION: &str = "noeviction";

/// Every lock has a TTL, so the policies `volatile-*` take locks as `allkeys-*` do.
pub(super) fn eviction(findings: &mut Findings<'_>, answers: &NodeAnswers) -> Answer<String> {
    let policy = policy(answers)?;
    let message = format!("maxmemory-policy is {policy}");
    if policy == NO_EVICTION {
        return Ok(message);
    }
    let remedy = format!("CONFIG SET maxmemory-policy {NO_EVICTION}");
    let limit = number(answers, "maxmemory").or_else(|_| answers.settings.number("maxmemory"));
    match limit {
        Ok(0) => findings.warn(
            format!("{message}: a maxmemory, once set, lets it evict locks"),
            remedy,
        ),
        Ok(_) => findings.fail(
            format!("{message}: a lock that is held may be evicted"),
            remedy,
        ),
        Err(_) => findings.warn(
            format!("{message}: with a maxmemory, which is not known, locks may be evicted"),
            remedy,
        ),
    }
    Ok(message)
}

fn policy(answers: &NodeAnswers) -> Answer<&str> {
    let info = answers.info.as_ref();
    match info.map(|info| info.get("maxmemory_policy")) {
        Ok(Some(policy)) => Ok(policy),
        _ => answers.settings.get("maxmemory-policy"),
    }
}

fn number(answers: &NodeAnswers, field: &str) -> Answer<u64> {
    answers.info()?.number(field)
}

/// At nine tenths of the limit it is time to act.
pub(super) fn memory(findings: &mut Findings<'_>, answers: &NodeAnswers) -> Answer<String> {
    let used = number(answers, "used_memory")?;
    let limit = number(answers, "maxmemory")?;
    if limit == 0 {
        let host = number(answers, "total_system_memory").unwrap_or(u64::MAX);
        if is_nearly(used, host) {
            findings.warn(
                format!("{} used, of {} that the host has", shown(used), shown(host)),
                "CONFIG SET maxmemory, and more memory: without a limit the kernel may end the \
                 server",
            );
        }
        return Ok(format!("{} used; there is no maxmemory", shown(used)));
    }
    let message = format!("{} used of a maxmemory of {}", shown(used), shown(limit));
    let remedy = format!("CONFIG SET maxmemory to more than {limit}, or delete data");
    if used >= limit && policy(answers).is_ok_and(|policy| policy == NO_EVICTION) {
        findings.fail(format!("{message}: new locks are refused (OOM)"), remedy);
    } else if is_nearly(used, limit) {
        findings.warn(message.as_str(), remedy);
    }
    Ok(message)
}

fn is_nearly(used: u64, limit: u64) -> bool {
    used >= limit - limit / 10
}

/// In a unit with few digits.
fn shown(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut amount = bytes as f64;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{amount:.1} {}", UNITS[unit]),
    }
}
