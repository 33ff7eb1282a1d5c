//! Virtual processes on a virtual network, under faults.

use fairlock::sim;

#[test]
fn virtual_processes_keep_all_promises_whatever_goes_wrong() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let (seed, steps) = match number("FAIRLOCK_SEED") {
        Some(seed) => (seed, number("FAIRLOCK_STEPS").unwrap_or(1)),
        None => (0, number("FAIRLOCK_STEPS").unwrap_or(1_000_000)),
    };
    let begun = std::time::Instant::now();
    match sim::simulate(seed, steps, None) {
        Ok(tally) => println!("{} steps in {} runs took {:?}", tally.steps, tally.runs, begun.elapsed()),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn what_is_left_out_of_the_protocol_is_found() {
    for defect in sim::Defect::ALL {
        let begun = std::time::Instant::now();
        match sim::simulate(1, 1_000_000, Some(defect)) {
            Ok(tally) => println!("{defect:?} NOT FOUND in {tally:?} {:?}", begun.elapsed()),
            Err(failure) => println!("{defect:?} found after {} steps {:?}\n{failure}", failure.steps(), begun.elapsed()),
        }
    }
}
