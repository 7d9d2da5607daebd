#![no_main]

libfuzzer_sys::fuzz_target!(|case: &[u8]| {
    if let Err(what) = nenrin_fuzz::decoders::partial(case) {
        panic!("{what}");
    }
});
