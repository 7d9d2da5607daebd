use nenrin_core::*;
use nenrin_sim::config::Config;
use nenrin_sim::driver::*;
use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let seed: u64 = a[1].parse().unwrap();
    let from: usize = a[2].parse().unwrap();
    let to: usize = a[3].parse().unwrap();
    let mut c = Config::of_seed(seed);
    if a.len() > 4 && a[4] == "strict" {
        c.order = Order::Strict
    }
    let r = record::<Arc<Fs>>(&c, false).map_err(|f| f.to_string()).unwrap();
    println!("segments blocks {} device {}", c.segment_blocks, c.device_bytes);
    for k in from..to {
        let l = r.operation(k);
        let off: Option<u64> = l.split(" at ").nth(1).and_then(|x| x.parse().ok());
        println!(
            "{l}  {}",
            off.map(|o| {
                let b = o / 4096;
                if b < 16 || b >= c.device_bytes / 4096 - 16 {
                    "slot".to_string()
                } else {
                    format!("seg {}+{}", (b - 16) / c.segment_blocks as u64, (b - 16) % c.segment_blocks as u64)
                }
            })
            .unwrap_or_default()
        );
    }
    for k in from..=to {
        let img = r.image_at(k, 1);
        let p = probe(&img).unwrap();
        println!(
            "cut {k}: roots {:?}",
            p.roots
                .iter()
                .map(|s| (
                    s.generation.0,
                    s.root.map(|x| x.1.to_string()),
                    s.chain.0.segment.0,
                    s.chain.1,
                    s.chain_next.map(|n| n.segment.0)
                ))
                .collect::<Vec<_>>()
        );
    }
}
