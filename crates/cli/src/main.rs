//! nenrin
fn main() {}
