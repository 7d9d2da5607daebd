//! What cleaning costs: device bytes for each byte that programs write, counted on a device in memory.
//! `cargo run --release -p nenrin-core --example clean_cost -- [--json] [MiB] [percent] [commit-blocks]`
#![allow(clippy::unwrap_used)] // an example stops at the first error

#[path = "../tests/it/common/churn.rs"]
mod churn;

use churn::{Churn, Pattern};

fn main() {
    let json = std::env::args().any(|a| a == "--json");
    let mut args = std::env::args().skip(1).filter(|a| a != "--json").map(|a| a.parse::<u64>().unwrap());
    let mib = args.next().unwrap_or(512);
    let percents = args.next().map_or(vec![50, 80, 90, 95], |p| vec![p]);
    let commit_blocks = args.next().unwrap_or(4096);
    if !json {
        println!(
            "volume {mib} MiB, a commit after {commit_blocks} blocks, as much overwritten as is live, after as much to settle"
        );
    }
    for pattern in [Pattern::Uniform, Pattern::HotCold, Pattern::HotSpread] {
        for percent in percents.clone() {
            let mut c = Churn::new(mib << 20, percent, pattern, commit_blocks);
            let share = c.blocks * 409_600 / (mib << 20);
            c.overwrite(1);
            let cost = c.overwrite(1);
            let text = if json {
                format!(
                    "{{\"volume_mib\":{mib},\"commit_blocks\":{commit_blocks},\"pattern\":\"{pattern:?}\",\"live_percent\":{percent},\
                     \"device\":{:.3},\"moved\":{:.3},\"index\":{:.3},\"chain\":{:.3},\"checkpoints\":{},\"tree_walks\":{},\"stalls\":{}}}",
                    cost.device, cost.moved, cost.index, cost.chain, cost.checkpoints, cost.tree_walks, cost.stalls
                )
            } else {
                format!(
                    "{pattern:?} {percent} % of what is available, {share} % of the device: {:.2} device bytes per byte; moved {:.2}, index {:.2}, chain {:.2}; {} checkpoints, {} walks, {} in the writer's way",
                    cost.device, cost.moved, cost.index, cost.chain, cost.checkpoints, cost.tree_walks, cost.stalls
                )
            };
            println!("{text}");
        }
    }
}
