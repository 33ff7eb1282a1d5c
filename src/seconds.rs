//! How durations and times are serialized: as seconds with a fraction, in whole µs.
//!
//! A number has 53 bits, which hold the µs since 1970 until the year 2255.

use std::time::Duration;

#[cfg(feature = "unstable-servers")]
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

#[cfg(feature = "unstable-servers")]
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    whole_micros(f64::deserialize(from)?)
}

/// The nearest number of µs. Most fractions of a second have no exact form in binary.
#[cfg(feature = "unstable-servers")]
fn whole_micros<E: Error>(seconds: f64) -> Result<Duration, E> {
    let micros = (seconds * 1e6).round();
    // The comparison is false for what is not a number.
    if (0.0..u64::MAX as f64).contains(&micros) {
        Ok(Duration::from_micros(micros as u64))
    } else {
        Err(E::custom(format_args!(
            "expected seconds, not below 0, got {seconds}"
        )))
    }
}

/// A duration that may be absent.
pub(crate) mod optional {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => super::serialize(time, to),
            None => to.serialize_none(),
        }
    }

    #[cfg(feature = "unstable-servers")]
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(from)?;
        seconds.map(whole_micros).transpose()
    }
}

/// A time, as the seconds since the Unix epoch.
pub(crate) mod since_epoch {
    use std::time::SystemTime;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
        // A server's clock shows no time before 1970.
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        super::serialize(&since.unwrap_or_default(), to)
    }

    #[cfg(feature = "unstable-servers")]
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        let since = super::deserialize(from)?;
        let time = SystemTime::UNIX_EPOCH.checked_add(since);
        time.ok_or_else(|| D::Error::custom("expected a time, got one that is too late"))
    }
}
