#![no_main]

libfuzzer_sys::fuzz_target!(|case: &[u8]| {
    if let Err(what) = nenrin_fuzz::repair::repair(case) {
        panic!("{what}");
    }
});
