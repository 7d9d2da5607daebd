#![no_main]

libfuzzer_sys::fuzz_target!(|case: &[u8]| {
    if let Err(what) = nenrin_fuzz::image::image(case) {
        panic!("{what}");
    }
});
