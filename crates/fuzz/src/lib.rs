//! Hostile bytes (promise P8): whatever a device holds, nothing panics, hangs,
//! takes memory without bound, or writes outside the volume.
//!
//! A case is a string of bytes from which all choices are made ([`choices`]), so
//! that random bytes on stable Rust, a corpus and a coverage-guided fuzzer drive
//! the same targets ([`TARGETS`]). Changes know the structures: checksums are
//! set right again afterwards, or nothing behind the first check were ever tried.

pub mod alter;
pub mod choices;
pub mod decoders;
pub mod directed;
pub mod forge;
pub mod guard;
pub mod image;
pub mod memory;
pub mod repair;
pub mod runner;
pub mod volume;

/// What a case is given to: its name, and the target. An error says what is wrong.
pub type Target = (&'static str, fn(&[u8]) -> Result<(), String>);

/// All targets.
pub const TARGETS: &[Target] = &[
    ("slot", decoders::slot),
    ("partial", decoders::partial),
    ("records", decoders::records),
    ("root", decoders::root),
    ("node", decoders::node),
    ("items", decoders::items),
    ("image", image::image),
    ("repair", repair::repair),
];

/// Whether the cases of a target are choices of how to change an image.
#[must_use]
pub fn is_of_images(target: &str) -> bool {
    matches!(target, "image" | "repair")
}

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|t| t.0 == name).copied()
}
