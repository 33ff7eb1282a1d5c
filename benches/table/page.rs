//! docs/BENCHMARKS.md: the figures that people read.

use crate::results::Results;
use crate::{kept, peers, short};

const MISSES: &str = include_str!("misses.md");

pub(crate) fn page(results: &Results) -> String {
    let lines = &results.lines;
    let about = results.about();
    let kept = match kept::table(lines) {
        table if table.is_empty() => "This run did not measure them.\n".to_owned(),
        table => table,
    };
    let (bounded, met) = short::count(lines);
    format!(
        "# Benchmarks

`benches/run.sh` made this page. Anyone can run it, in 40 minutes on an idle machine.
`benches/run.sh --quick` gives a first look in less than three. This run was made on {about}.
[RESULTS.md](../benches/RESULTS.md) has all figures with their spread, and says where the time goes.

## How to read them

- A figure is the median of its rounds. Within a round, the things that are compared take turns, so a
  disturbance of the machine affects both. Ratios are worth more than times, which are this machine's.
- The *floor* is what no lock on Redis can do without: a bare connection that sends `SET NX PX` and a
  compare-and-delete script. A lock and its release are two requests of one round trip each.
- Redis runs on the same host, where the scripts' own time shows most, unless a link is named.
- *Cores*: a round trip takes three times as long if client and server run on two cores, because each
  has to wake the other core. So benches of single round trips pin both ends: first on *one* core,
  then on *two*. For the others the scheduler chooses. On two cores, differences of less than a quarter mean nothing.

## Beside other clients

With their defaults. The first column is on two cores; the last two are of 8 threads on one name that is
held for 1 ms. *Bare commands* wait for both replies.

{}{}
![The figures beside other clients as bars](benchmarks-peers.svg)

Other clients are ahead in places. Their scripts do less: they know no queue, no fences and no loss.
A thread that asks in a loop often takes its own lock again without a switch, which gives more turns
and unequal shares: compare the longest waits.

## Kept locks

A [kept lock][GUIDE.md#kept-locks] stays with its process after the release, until another wants it.

{kept}
## Bounds

fairlock was designed for these bounds. It meets {met} of {bounded}. For several cases the table has the range of
their medians, and names the one that is farthest from its bound. The number is the section of
[RESULTS.md](../benches/RESULTS.md).

{}
## Misses

Most misses have one of these reasons; [RESULTS.md](../benches/RESULTS.md#where-the-time-goes) has the numbers.

{MISSES}
## Charts

![Charts of all figures](benchmarks.svg)

[GUIDE.md#kept-locks]: GUIDE.md#kept-locks
",
        left_out(peers::left_out(lines)),
        peers::table(lines),
        short::table(lines),
    )
}

/// A paragraph of its own, if there is any.
fn left_out(text: String) -> String {
    if text.is_empty() { text } else { text + "\n" }
}
