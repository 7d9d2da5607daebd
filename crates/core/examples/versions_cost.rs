//! What 1,000 versions of a file of 10 MiB take, 4 KiB changed in each, all kept, after cleaning; on a device in memory.
//! `cargo run --release -p nenrin-core --example versions_cost -- [versions] [MiB] [volume-MiB]`; `--json` as JSON.
#![allow(clippy::unwrap_used)] // an example stops at the first error

#[path = "../tests/it/common/versions.rs"]
mod versions;

use versions::Versions;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let as_json = args.iter().any(|a| a == "--json");
    let mut numbers = args.iter().filter(|a| *a != "--json").map(|a| a.parse::<u64>().unwrap());
    let count = numbers.next().unwrap_or(1000);
    let mib = numbers.next().unwrap_or(10);
    let volume_mib = numbers.next().unwrap_or(512);
    let mut v = Versions::new((volume_mib << 20) as usize, mib << 20);
    for _ in 0..count {
        v.add();
    }
    let dirty = v.taken();
    v.clean();
    let clean = v.taken();
    v.verify();
    let (free, all) = (clean.history + clean.nodes, v.fs.checkpoints().len());
    if as_json {
        println!(
            "{{\"versions\": {count}, \"file_mib\": {mib}, \"volume_mib\": {volume_mib}, \"checkpoints\": {all}, \"history_bytes\": {}, \"node_bytes\": {}, \"beyond_before_cleaning_bytes\": {}, \"beyond_bytes\": {}}}",
            clean.history, clean.nodes, dirty.beyond, clean.beyond
        );
        return;
    }
    let show = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    println!(
        "{count} versions of a file of {mib} MiB, 4 KiB changed in each, {all} checkpoints kept, volume {volume_mib} MiB"
    );
    println!(
        "needed beyond the file as it is: {} (history {}, index {})",
        show(free),
        show(clean.history),
        show(clean.nodes)
    );
    println!("segments in use beyond it: {} before cleaning, {} after", show(dirty.beyond), show(clean.beyond));
}
