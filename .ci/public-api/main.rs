//! Prints the public API in the JSON of rustdoc, an item on each line:
//!
//!     public-api-snapshot JSON
//!
//! Or tells whether the version follows from the changes between two such lists:
//!
//!     public-api-snapshot semver OLD OLD_VERSION NEW NEW_VERSION

mod semver;

use std::{env, error::Error, fs, process::ExitCode};

use public_api::Builder;

/// Traits that the compiler adds and no program can name.
const INTERNAL: [&str; 3] = [
    "core::marker::Freeze for",
    "core::marker::UnsafeUnpin for",
    "core::marker::StructuralPartialEq for",
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [json] => print_api(json)?,
        ["semver", old, old_version, new, new_version] => {
            let (old, new) = (fs::read_to_string(old)?, fs::read_to_string(new)?);
            let changes = semver::Changes::between(&old, &new);
            print!("{changes}");
            if !changes.allow(old_version.parse()?, new_version.parse()?) {
                eprintln!("Version {new_version} does not tell users of {old_version} so.");
                return Ok(ExitCode::FAILURE);
            }
        }
        _ => return Err("usage: JSON | semver OLD OLD_VERSION NEW NEW_VERSION".into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_api(json: &str) -> Result<(), Box<dyn Error>> {
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .build()?;
    for item in api.items().map(ToString::to_string) {
        if !INTERNAL.iter().any(|internal| item.contains(internal)) {
            println!("{item}");
        }
    }
    Ok(())
}
