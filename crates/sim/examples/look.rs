use nenrin_sim::config::Config; use nenrin_sim::driver::*; use nenrin_core::*; use std::sync::Arc;
fn main(){ let a:Vec<String>=std::env::args().collect(); let seed:u64=a[1].parse().unwrap(); let k:usize=a[2].parse().unwrap(); let ch:u64=a[3].parse().unwrap();
 let c=Config::of_seed(seed); let r=record::<Arc<Fs>>(&c,false).map_err(|f|f.to_string()).unwrap();
 let img:Arc<dyn nenrin_device::BlockDevice>=Arc::new(r.image_at(k,ch));
 let fs=Fs::open(vec![img],Arc::new(nenrin_sim::clock::VirtualClock::new()),c.options()).unwrap();
 println!("{:?}", fs.recovery_report());
 for s in fs.segments(){println!("{s:?}")}
}
