#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fairlock::sim::fuzz::wire(bytes));
