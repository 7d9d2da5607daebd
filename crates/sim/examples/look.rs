use nenrin_core::*;
use nenrin_sim::config::Config;
use nenrin_sim::driver::*;
use std::sync::Arc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let seed: u64 = a[1].parse().unwrap();
    let steps: usize = a[2].parse().unwrap();
    let mut c = Config::of_seed(seed);
    c.steps = steps;
    let r = record::<Arc<Fs>>(&c, false).map_err(|f| f.to_string()).unwrap();
    let img: Arc<dyn nenrin_device::BlockDevice> = Arc::new(r.image_at(r.last_cut(), 1));
    let p = probe(&img).unwrap();
    println!(
        "roots {:?}",
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
    let mut o = c.options();
    o.read_only = true;
    let fs = Fs::open(vec![img], Arc::new(nenrin_sim::clock::VirtualClock::new()), o).unwrap();
    println!("{:?} {:?}", fs.recovery_report(), fs.usage());
    for s in fs.segments() {
        println!("{s:?}")
    }
}
