//! Replays the inputs in `fuzz/corpus` without a fuzzer: those that a fuzzer collected and those
//! that once failed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::TARGETS;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn no_input_of_the_corpus_fails() {
    for (name, target) in TARGETS {
        let dir = corpus().join(name);
        let inputs = names_in(&dir);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            // If one fails, its name is the last that is printed.
            println!("{name}/{input}");
            target(&fs::read(dir.join(input)).unwrap());
        }
    }
}

#[test]
fn targets_match_the_fuzzers_and_the_corpus_is_small() {
    let mut targets: Vec<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    targets.sort();
    assert_eq!(names_in(&corpus()), targets);
    let files = names_in(&corpus().join("../fuzz_targets"));
    assert_eq!(
        files,
        targets
            .iter()
            .map(|name| format!("{name}.rs"))
            .collect::<Vec<_>>()
    );
    let inputs = targets.iter().flat_map(|name| {
        let dir = corpus().join(name);
        names_in(&dir).into_iter().map(move |input| dir.join(input))
    });
    let sizes: Vec<u64> = inputs
        .map(|input| fs::metadata(input).unwrap().len())
        .collect();
    assert!(
        sizes.len() <= 210 && sizes.iter().sum::<u64>() <= 200 * 1024,
        "{} inputs",
        sizes.len()
    );
}
