//! The first master that is found, and why none is.

use super::configuration::{Known, majority, newest};
use super::master::{Master, MasterOpener};
use super::panel::{Answers, Panel};
use super::question::MasterAnswer;
use crate::error::{Step, with_causes};
use crate::logging::Logger;
use crate::store::clock::Time;
use crate::store::{Address, StoreFault};

/// Asks the sentinels, and connects to the master that they name: by the newest configuration, or
/// if that one cannot be reached, by a majority. Blocks until `until` at most, half of the time for
/// the sentinels.
pub(super) fn first_master(
    service: &str,
    panel: &mut Panel,
    opener: &MasterOpener,
    until: Time,
) -> Result<(Known, Master), StoreFault> {
    let now = opener.now();
    let answers = panel.ask_all(now + (until - now) / 2);
    let named = newest(&answers).ok_or_else(|| no_master(service, panel, &answers))?;
    let fault = match opener.open(&named.address, until) {
        Ok(first) => return Ok((Known::new(named), first)),
        Err(fault) => fault_at(&named.address, service, fault),
    };
    let agreed = majority(&answers).filter(|agreed| agreed.address != named.address);
    let Some((agreed, first)) = agreed.and_then(|agreed| {
        let first = opener.open_master(&agreed.address, until).ok()?;
        Some((agreed, first))
    }) else {
        return Err(fault);
    };
    log::warn!(
        logger: Logger,
        "{agreed} name {} the master of {service:?}; {} of a newer configuration failed: {}",
        agreed.address,
        named.address,
        fault.reason()
    );
    let mut known = Known::new(named);
    known.follow_majority(&agreed, &answers);
    Ok((known, first))
}

/// Why the sentinels name no master.
pub(super) fn no_master(service: &str, panel: &Panel, answers: &Answers) -> StoreFault {
    let answered: Vec<&MasterAnswer> = answers.iter().flatten().collect();
    if answered.contains(&&MasterAnswer::UnknownService) {
        return StoreFault::Unfit {
            what: "service",
            message: format!("one that the sentinels watch; they do not know {service:?}"),
        };
    }
    if !answered.is_empty() {
        let why = format!("the sentinels that answer name an old master of {service:?}");
        return StoreFault::unavailable(Step::Connect, why).at(&panel.addresses());
    }
    let faults = panel.faults(answers);
    let refusal = faults.iter().find_map(|(sentinel, fault)| match fault {
        StoreFault::Server { code, message, .. } => {
            let login = match code.as_str() {
                "NOAUTH" | "WRONGPASS" => "; its login is not that of the master: sentinelPassword",
                _ => "",
            };
            let message = format!("{message} (said sentinel {sentinel}{login})");
            let fault = StoreFault::server(code, message);
            Some(fault.at(&sentinel.to_string().into()))
        }
        StoreFault::Unfit { .. } => Some((*fault).clone()),
        StoreFault::Tls { .. } => Some((*fault).clone()),
        fault if fault.lacks_credentials() => {
            Some((*fault).clone().at(&sentinel.to_string().into()))
        }
        _ => None,
    });
    refusal.unwrap_or_else(|| {
        let all: Vec<String> = faults
            .iter()
            .map(|(at, why)| format!("{at}: {}", why.reason()))
            .collect();
        let all = all.join("; ");
        let text = format!("no sentinel of {service:?} answers: {all}");
        let reasons = faults.iter().map(|(_, why)| *why);
        StoreFault::none_available(Step::Connect, text, reasons).at(&panel.addresses())
    })
}

/// A fault of the server that the sentinels name.
pub(super) fn fault_at(address: &Address, service: &str, fault: StoreFault) -> StoreFault {
    match fault {
        StoreFault::Unavailable { step, source, .. } => {
            let why = format!(
                "{address}, the master of {service:?}: {}",
                with_causes(&**source)
            );
            StoreFault::unavailable(step, why).at(&address.to_string().into())
        }
        other => other,
    }
}
