//! Lines that the tests write for the scripts that run them. Each kind has a file, which the
//! environment names. Without it, nothing is written.

use std::{env, fs::File, io::Write, thread};

use super::server::version;

/// Notes how long a test had this server.
pub(super) fn time(millis: u128, test: &str) {
    append("FAIRLOCK_TEST_TIMES", &format!("{millis} {test}\n"));
}

/// Notes that the running test is left out on this server, and why.
pub(crate) fn left_out(why: &str) {
    let test = thread::current().name().unwrap_or_default().to_owned();
    note("left out", &test, why);
}

/// Notes that this server lacks something, and what is done instead.
pub(crate) fn lacks(feature: &str, instead: &str) {
    note("lacks", feature, instead);
}

fn note(kind: &str, what: &str, text: &str) {
    let mut words = version().split(' ');
    let (name, number) = (words.next(), words.find_map(|word| word.strip_prefix("v=")));
    let [name, number] = [name, number].map(Option::unwrap_or_default);
    let line = format!("{name} {number}\t{kind}\t{what}\t{text}\n");
    append("FAIRLOCK_TEST_RAN", &line);
}

/// One write per line, appended, so that lines of parallel tests do not mix.
fn append(variable: &str, line: &str) {
    if let Some(path) = env::var_os(variable) {
        let _ = File::options()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
