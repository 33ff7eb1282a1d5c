//! Prints the public API in the JSON of rustdoc, an item on each line.

use public_api::Builder;

/// Traits that the compiler adds and no program can name.
const INTERNAL: [&str; 3] = [
    "core::marker::Freeze for",
    "core::marker::UnsafeUnpin for",
    "core::marker::StructuralPartialEq for",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let json = std::env::args()
        .nth(1)
        .ok_or("the path of rustdoc's JSON is missing")?;
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
