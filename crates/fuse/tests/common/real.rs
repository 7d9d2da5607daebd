//! A real volume on a device in memory.

use nenrin_core::{At, Clock, Fs, MkfsOptions, MountOptions, mkfs_on};
use nenrin_device::{BlockDevice, MemDevice};
use nenrin_format::{Ino, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

struct SystemClock(Instant);

impl Clock for SystemClock {
    fn wall(&self) -> Time {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        Time(since.as_nanos() as i64)
    }
    fn monotonic_nanos(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

pub struct Real {
    pub devices: Vec<Arc<dyn BlockDevice>>,
    clock: Arc<dyn Clock>,
}

impl Real {
    pub fn new(bytes: usize, options: &MkfsOptions) -> Self {
        Self::on(vec![Arc::new(MemDevice::new(bytes))], options)
    }
    pub fn on(devices: Vec<Arc<dyn BlockDevice>>, options: &MkfsOptions) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock(Instant::now()));
        mkfs_on(&devices, &clock, options).unwrap();
        Self { devices, clock }
    }
    pub fn open(&self) -> Arc<Fs> {
        self.open_with(MountOptions::default())
    }
    pub fn open_with(&self, options: MountOptions) -> Arc<Fs> {
        Fs::open(self.devices.clone(), self.clock.clone(), options).unwrap()
    }
}

/// Everything that a volume shows: by path, what stat(2), listxattr(2),
/// readlink(2) and read(2) would say.
pub fn contents(fs: &Fs, at: At) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    let mut rest = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = rest.pop() {
        let mut attr = fs.getattr(at, ino).unwrap();
        // Space may be counted differently before a commit and after it.
        attr.blocks_512 = 0;
        let mut says = format!("{attr:?}");
        for name in fs.listxattr(at, ino).unwrap() {
            let value = fs.getxattr(at, ino, &name).unwrap();
            says += &format!(" {}={}", String::from_utf8_lossy(&name), digest(&value));
        }
        match attr.mode & libc::S_IFMT {
            libc::S_IFDIR => fs
                .readdir(at, ino, 0, &mut |e| {
                    if e.name != b"." && e.name != b".." {
                        rest.push(([&path[..], b"/", &e.name].concat(), e.ino));
                    }
                    true
                })
                .unwrap(),
            libc::S_IFLNK => says += &format!(" -> {}", digest(&fs.readlink(at, ino).unwrap())),
            libc::S_IFREG => {
                let bytes = fs.read(at, ino, 0, attr.size as usize).unwrap();
                says += &format!(" {} {}", bytes.len(), digest(&bytes));
            }
            _ => {}
        }
        all.insert(path, says);
    }
    all
}

fn digest(bytes: &[u8]) -> String {
    format!("{:08x}", nenrin_format::crc(bytes))
}
