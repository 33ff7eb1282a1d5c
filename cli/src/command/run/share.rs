//! How much of the lock the command takes.

use std::str::FromStr;

use fairlock::MAX_PERMITS;

/// How much of the lock the command takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    Alone,
    Permits(Permits),
    Reader,
    Writer,
}

/// `K/N`: this many of so many permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) take: u32,
    pub(super) of: u32,
}

impl FromStr for Permits {
    type Err = String;

    fn from_str(text: &str) -> Result<Permits, String> {
        let numbers = text.split_once('/');
        let parsed = numbers.and_then(|(take, of)| {
            Some(Permits {
                take: take.parse().ok()?,
                of: of.parse().ok()?,
            })
        });
        match parsed {
            Some(Permits { of, .. }) if of > MAX_PERMITS => {
                Err(format!("a semaphore has at most {MAX_PERMITS} permits"))
            }
            Some(permits) if (1..=permits.of).contains(&permits.take) => Ok(permits),
            _ => Err("two numbers as in 1/4, the first from 1 to the second".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Permits;

    #[test]
    fn permits_are_two_numbers_that_fit() {
        assert_eq!("2/4".parse(), Ok(Permits { take: 2, of: 4 }));
        assert_eq!("4/4".parse(), Ok(Permits { take: 4, of: 4 }));
        for wrong in [
            "",
            "2",
            "2/",
            "/4",
            "0/4",
            "5/4",
            "0/0",
            "-1/4",
            "1/4/5",
            "1/99999999",
        ] {
            assert!(wrong.parse::<Permits>().is_err(), "{wrong}");
        }
    }
}
