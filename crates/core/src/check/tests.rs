//! Wrong states, made by changing a recovered state behind the records' back
//! and writing it out as if it were right: each gives the findings it must and
//! no others.

mod forged;

use super::names::Directories;
use super::report::Log;
use super::{CheckOptions, What, check, paths};
use crate::fs::Opened;
use crate::recovery::recover;
use crate::state::{REST_FORK, State, orphan_key, reap_key};
use crate::testing::TestClock;
use crate::{At, Clock, Fs, MkfsOptions, MountOptions, NewInode, SetAttr, XattrMode, mkfs};
use nenrin_device::{BlockDevice, MemDevice, Prng};
use nenrin_format::items::{
    Backref, Dirent, EXTENT_LOST, EXTENT_SHARED, EXTENT_UNWRITTEN, Extent, Inode, KeepRule, Reap, encode_bytes,
};
use nenrin_format::key::{Key, Kind};
use nenrin_format::records::{ContentOp, Record};
use nenrin_format::{Addr, Cno, Ino, SegmentNo, Seq, Time};
use std::collections::BTreeSet;
use std::sync::Arc;

const DIR: Ino = Ino(16);
const SUB: Ino = Ino(17);
const FILE: Ino = Ino(18);
const SMALL: Ino = Ino(19);
const SYMLINK: Ino = Ino(20);
const XATTR: Ino = Ino(21);
const EMPTY: Ino = Ino(22);
const ORPHAN: Ino = Ino(23);
const DEAD: Ino = Ino(24);

fn new(mode: u32) -> NewInode<'static> {
    NewInode { mode, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// A volume with some of everything.
fn volume() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(16 << 20));
    let clock: Arc<dyn Clock> = Arc::new(TestClock::default());
    mkfs(&device, &clock, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(vec![device.clone()], clock, MountOptions::default()).unwrap();
    let make = |parent, name: &[u8], mode| fs.create(parent, name, &new(mode)).unwrap().ino;
    assert_eq!(make(Ino::ROOT, b"dir", 0o040_755), DIR);
    assert_eq!(make(DIR, b"sub", 0o040_755), SUB);
    assert_eq!(make(DIR, b"file", 0o100_644), FILE);
    assert_eq!(make(SUB, b"small", 0o100_644), SMALL);
    let link = NewInode { target: b"to/somewhere", ..new(0o120_777) };
    assert_eq!(fs.create(Ino::ROOT, b"link", &link).unwrap().ino, SYMLINK);
    assert_eq!(make(Ino::ROOT, b"attributes", 0o100_644), XATTR);
    assert_eq!(make(Ino::ROOT, b"empty", 0o100_644), EMPTY);
    assert_eq!(make(Ino::ROOT, b"orphan", 0o100_644), ORPHAN);
    assert_eq!(make(Ino::ROOT, b"dead", 0o100_644), DEAD);
    fs.setxattr(XATTR, b"user.long", &[5; 9000], XattrMode::Any).unwrap();
    fs.write(SMALL, 0, &[1; 100], 0).unwrap();
    fs.fsync_wait(SMALL).unwrap();
    fs.write(FILE, 0, &[2; 20 * 4096], 0).unwrap();
    fs.checkpoint_create(Some(b"first")).unwrap();
    fs.write(FILE, 0, &[3; 20 * 4096], 0).unwrap();
    for i in 0..20 {
        fs.write(DEAD, i * 40_960, &[4; 4096], 0).unwrap();
    }
    fs.setattr(SMALL, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    fs.checkpoint_create(Some(b"second")).unwrap();
    fs.setattr(SMALL, &SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    fs.checkpoint_create(Some(b"third")).unwrap();
    fs.retain(ORPHAN);
    fs.unlink(Ino::ROOT, b"orphan").unwrap();
    fs.unlink(Ino::ROOT, b"dead").unwrap();
    fs.checkpoint_create(None).unwrap();
    assert!(fs.getattr(At::Live, DEAD).is_err());
    fs.close().unwrap();
    device
}

fn found(device: &Arc<dyn BlockDevice>, data: bool) -> BTreeSet<u16> {
    let report = check(std::slice::from_ref(device), &CheckOptions { data }, &mut |_| {}).unwrap();
    for f in &report.findings {
        println!("  {f}");
    }
    report.findings.iter().map(|f| f.what.number()).collect()
}

/// The findings of a volume after `edit` and some index checkpoints.
fn edited_and_settled(checkpoints: usize, edit: impl FnOnce(&mut State)) -> BTreeSet<u16> {
    let device = volume();
    let options = MountOptions::default();
    let mut opened: Opened = recover(std::slice::from_ref(&device), &options).unwrap();
    edit(&mut opened.state);
    let fs = Fs::assemble(opened, Arc::new(TestClock::default()), options);
    for _ in 0..checkpoints {
        fs.index_checkpoint(true).unwrap();
    }
    found(&device, checkpoints == 1)
}

#[track_caller]
fn assert_finds(numbers: &[u16], edit: impl FnOnce(&mut State)) {
    assert_eq!(edited_and_settled(1, edit), numbers.iter().copied().collect());
}

impl State {
    fn edit_inode(&mut self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let mut inode = self.need_inode(ino).unwrap();
        edit(&mut inode);
        self.set(Key::new(ino, Kind::Inode, 0, 0), inode.encode());
    }
    fn set(&mut self, key: Key, value: Vec<u8>) {
        self.live.insert(&self.cache, key, value.into()).unwrap();
    }
    fn unset(&mut self, key: Key) {
        assert!(self.live.remove(&self.cache, &key).unwrap().is_some());
    }
    fn set_space(&mut self, key: Key, value: Vec<u8>) {
        self.space.insert(&self.cache, key, value.into()).unwrap();
    }
    fn first(&self, ino: Ino, kind: Kind) -> (Key, Vec<u8>) {
        let (key, value) = self.live.next(&self.cache, &Key::new(ino, kind, 0, 0)).unwrap().unwrap();
        assert_eq!((key.ino, key.kind), (ino.0, kind));
        (key, value.to_vec())
    }
    fn extent(&self, ino: Ino) -> (Key, Extent) {
        let (key, value) = self.first(ino, Kind::Extent);
        (key, Extent::decode(&value).unwrap())
    }
    fn entry(&mut self, parent: Ino, ino: Ino, name: &[u8]) {
        let birth = self.open_cno;
        let file_type = (self.need_inode(ino).unwrap().mode >> 12) as u8;
        let key = self.free_slot(self.dirent_key(parent, name)).unwrap();
        self.set(key, Dirent { birth, ino, file_type, name }.encode());
    }
    fn back(&mut self, parent: Ino, ino: Ino, name: &[u8]) {
        let key = self.free_slot(self.link_key(ino, parent, name)).unwrap();
        self.set(key, Dirent { birth: self.open_cno, ino: parent, file_type: 0, name }.encode());
    }
    /// An item of history: of this inode, born before it died.
    fn past(&self, ino: Ino) -> (Key, Inode) {
        let tree = &self.history[0].tree;
        let from = Key::new(ino, Kind::Inode, 0, 0);
        let (key, value) = tree.prev(&self.cache, &from.died(u64::MAX)).unwrap().unwrap();
        assert_eq!(key.ino, ino.0);
        (key, Inode::decode(&value).unwrap())
    }
    fn set_past(&mut self, key: Key, inode: &Inode) {
        self.history[0].tree.insert(&self.cache, key, inode.encode().into()).unwrap();
    }
}

fn unwritten(blocks: u32) -> Vec<u8> {
    let flags = EXTENT_UNWRITTEN;
    Extent { birth: Cno(1), addr: Addr::NONE, blocks, flags, granule_shift: 0, lead: 0, tail: 0, crcs: vec![] }.encode()
}

fn reap(fork: u32, whole: bool) -> Vec<u8> {
    Reap { death: Cno(1), fork, whole, rule: KeepRule::default() }.encode()
}

#[test]
fn the_volume_itself_is_clean() {
    assert_finds(&[], |_| {});
    assert!(edited_and_settled(3, |_| {}).is_empty());
}

#[test]
fn items_that_cannot_be() {
    assert_finds(&[206], |s| s.set_space(orphan_key(ORPHAN), vec![0; 3]));
    assert_finds(&[206], |s| s.set(Key::new(SMALL, Kind::Dirent, 0, 99), vec![0; 9]));
    assert_finds(&[206, 303], |s| s.edit_inode(EMPTY, |i| i.mode = 0o170_000));
    assert_finds(&[207], |s| s.set(Key::new(FILE, Kind::Inode, 0, 0).died(3), vec![0; 128]));
    assert_finds(&[207], |s| s.set(Key::new(FILE, Kind::Reap, 0, 0), vec![0; 128]));
    assert_finds(&[207], |s| s.set_space(Key::new(FILE, Kind::Inode, 0, 0), vec![0; 128]));
    assert_finds(&[207], |s| s.set_space(Key::space(Kind::Segment, 0, 1 << 40), vec![0; 56]));
    assert_finds(&[207], |s| s.set_space(Key::space(Kind::Segment, 7, 3), vec![0; 56]));
    assert_finds(&[209], |s| s.edit_inode(FILE, |i| i.birth = Cno(1000)));
    assert_finds(&[209], |s| {
        s.set_space(
            orphan_key(ORPHAN),
            Reap { death: Cno(99), fork: 0, whole: true, rule: KeepRule::default() }.encode(),
        )
    });
}

#[test]
fn names_that_do_not_fit() {
    assert_finds(&[302], |s| {
        s.unset(Key::new(SMALL, Kind::Inode, 0, 0));
        s.unset(Key::new(SMALL, Kind::Inline, 0, 0));
        s.unset(s.first(SMALL, Kind::Link).0);
        s.inodes -= 1;
    });
    assert_finds(&[303], |s| {
        let (key, ..) = s.dirent(SUB, b"small").unwrap().unwrap();
        s.set(key, Dirent { birth: Cno(1), ino: SMALL, file_type: 6, name: b"small" }.encode());
    });
    for name in [&b"a/b"[..], b"..", b"\0"] {
        assert_finds(&[304], |s| {
            s.entry(SUB, SMALL, name);
            s.back(SUB, SMALL, name);
            s.edit_inode(SMALL, |i| i.nlink += 1);
            s.edit_inode(SUB, |i| i.entries += 1);
        });
    }
    assert_finds(&[305, 308], |s| {
        let (key, value) = s.first(SUB, Kind::Dirent);
        s.unset(key);
        s.set(Key { off: key.off ^ 0x100, ..key }, value);
    });
    assert_finds(&[305, 307], |s| {
        let (key, value) = s.first(SMALL, Kind::Link);
        s.unset(key);
        s.set(Key { off: key.off ^ 0x100, ..key }, value);
    });
    assert_finds(&[306], |s| {
        let (key, value) = s.first(SUB, Kind::Dirent);
        s.set(Key { off: key.off + 1, ..key }, value);
        s.edit_inode(SUB, |i| i.entries += 1);
    });
    assert_finds(&[307, 309], |s| s.unset(s.first(SMALL, Kind::Link).0));
    assert_finds(&[308], |s| {
        s.back(DIR, SMALL, b"nowhere");
        s.edit_inode(SMALL, |i| i.nlink += 1);
    });
    assert_finds(&[308], |s| {
        s.back(DIR, SMALL, b"file");
        s.edit_inode(SMALL, |i| i.nlink += 1);
    });
}

#[test]
fn inodes_and_directories_that_miscount() {
    assert_finds(&[309], |s| s.edit_inode(SMALL, |i| i.nlink += 1));
    assert_finds(&[309], |s| s.edit_inode(DIR, |i| i.nlink += 1));
    assert_finds(&[309], |s| s.edit_inode(Ino::ROOT, |i| i.nlink -= 1));
    assert_finds(&[310], |s| s.edit_inode(DIR, |i| i.entries += 1));
    assert_finds(&[311], |s| s.edit_inode(SUB, |i| i.parent = Ino::ROOT));
    assert_finds(&[311], |s| s.edit_inode(Ino::ROOT, |i| i.parent = SUB));
    assert_finds(&[312], |s| {
        let (old, new, time) = (&b"dir"[..], &b"dir"[..], Time(5));
        let record = Record::Rename { from: Ino::ROOT, to: SUB, flags: 0, drop: false, time, old, new };
        s.apply(&record, Addr::NONE).unwrap();
    });
    assert_finds(&[313], |s| {
        s.apply(&Record::Link { parent: Ino::ROOT, ino: SUB, time: Time(5), name: b"again" }, Addr::NONE).unwrap();
        s.edit_inode(SUB, |i| i.nlink -= 1);
        s.edit_inode(Ino::ROOT, |i| i.nlink += 1);
    });
    assert_finds(&[314], |s| drop(s.space.remove(&s.cache, &orphan_key(ORPHAN)).unwrap()));
    assert_finds(&[315], |s| s.set_space(orphan_key(SMALL), reap(0, true)));
    assert_finds(&[315], |s| s.set_space(orphan_key(Ino(15)), reap(0, true)));
    assert_finds(&[316], |s| {
        s.entry(FILE, SMALL, b"within");
        s.back(FILE, SMALL, b"within");
        s.edit_inode(SMALL, |i| i.nlink += 1);
    });
    let numbers = edited_and_settled(1, |s| s.edit_inode(Ino::ROOT, |i| i.mode = 0o100_644));
    assert!(numbers.contains(&301) && numbers.contains(&316), "{numbers:?}");
    let numbers = edited_and_settled(1, |s| s.unset(Key::new(Ino::ROOT, Kind::Inode, 0, 0)));
    assert!(numbers.contains(&301) && numbers.contains(&401), "{numbers:?}");
}

#[test]
fn more_directories_than_there_is_memory_for() {
    let opened = recover(&[volume()], &MountOptions::default()).unwrap();
    for count in [2, 3] {
        let mut progress = |_| {};
        let mut log = Log::new(&mut progress);
        let mut directories = Directories::with_room(2);
        (0..count).for_each(|i| directories.push(Ino(Ino::ROOT.0 + i), Ino::ROOT));
        directories.check(&opened.state, &mut log);
        let numbers: Vec<u16> = log.report.findings.iter().map(|f| f.what.number()).collect();
        assert_eq!(numbers.contains(&317), count == 3);
        assert_eq!(numbers.len() as u64, count - 2);
    }
}

#[test]
fn content_that_does_not_fit_its_inode() {
    assert_finds(&[401], |s| assert!(s.space.remove(&s.cache, &reap_key(DEAD, 0)).unwrap().is_some()));
    assert_finds(&[402], |s| {
        s.edit_inode(FILE, |i| {
            i.fork = 1;
            i.blocks = 0;
        })
    });
    assert_finds(&[], |s| {
        s.edit_inode(FILE, |i| {
            i.fork = 1;
            i.blocks = 0;
        });
        s.set_space(reap_key(FILE, 0), reap(0, false));
    });
    // All that is left are extents of that fork.
    assert_finds(&[], |s| s.set_space(reap_key(DEAD, 0), reap(0, false)));
    assert_finds(&[], |s| {
        s.set_space(reap_key(DEAD, 0), reap(0, false));
        s.set_space(reap_key(DEAD, REST_FORK), reap(1, true));
    });
    assert_finds(&[], |s| {
        drop(s.space.remove(&s.cache, &reap_key(DEAD, 0)).unwrap());
        s.set_space(reap_key(DEAD, REST_FORK), reap(0, true));
    });
    // Nobody reaps fork 0, or what is no extent.
    assert_finds(&[401], |s| s.set_space(reap_key(DEAD, 0), reap(1, true)));
    assert_finds(&[401], |s| {
        s.set_space(reap_key(DEAD, 0), reap(0, false));
        s.set(Key::new(DEAD, Kind::Inline, 0, 0), encode_bytes(Cno(1), b"x"));
    });
    assert_finds(&[403], |s| s.set_space(reap_key(FILE, REST_FORK), reap(0, true)));
    assert_finds(&[403], |s| s.set_space(reap_key(SMALL, 0), reap(0, true)));
    assert_finds(&[403], |s| s.set_space(reap_key(FILE, 0), reap(0, false)));
    for outside in
        [Addr::new(SegmentNo(1 << 30), 0), Addr::new(SegmentNo(3), 60), Addr::new(SegmentNo((1 << 42) - 1), 0)]
    {
        assert_finds(&[410], |s| {
            let (key, e) = s.extent(FILE);
            s.segments.sub_live(e.addr, e.blocks);
            s.set(key, Extent { addr: outside, ..e }.encode());
        });
    }
    let grow = |s: &mut State, off, blocks| {
        s.set(Key::new(FILE, Kind::Extent, 0, off), unwritten(blocks));
        s.edit_inode(FILE, |i| i.blocks += u64::from(blocks));
        s.promised_blocks += u64::from(blocks);
    };
    assert_finds(&[411], |s| grow(s, 255, 2));
    assert_finds(&[411], |s| grow(s, u64::MAX - 3, 2));
    assert_finds(&[412], |s| grow(s, 3, 1));
    assert_finds(&[704], |s| {
        grow(s, 30, 1);
        let key = Key::new(FILE, Kind::Extent, 0, 30);
        let reserved = Extent::decode(&s.get(&key).unwrap().unwrap()).unwrap();
        s.set(key, Extent { flags: EXTENT_UNWRITTEN | EXTENT_LOST, ..reserved }.encode());
        s.promised_blocks -= 1;
    });
    assert_finds(&[413], |s| s.edit_inode(FILE, |i| i.blocks += 1));
    assert_finds(&[413], |s| s.edit_inode(DIR, |i| i.blocks += 1));
    assert_finds(&[414], |s| s.edit_inode(FILE, |i| i.size = 0));
    assert_finds(&[415], |s| s.set(Key::new(FILE, Kind::Inline, 0, 0), encode_bytes(Cno(1), &[1; 9])));
    assert_finds(&[416], |s| s.edit_inode(SMALL, |i| i.size += 1));
    assert_finds(&[416], |s| {
        s.set(Key::new(SMALL, Kind::Inline, 0, 0), encode_bytes(Cno(1), &[1; 3000]));
        s.edit_inode(SMALL, |i| i.size = 3000);
    });
    assert_finds(&[417], |s| s.set(Key::new(DIR, Kind::Inline, 0, 0), encode_bytes(Cno(1), &[1; 9])));
    assert_finds(&[417], |s| s.set(Key::new(FILE, Kind::Symlink, 0, 0), encode_bytes(Cno(1), &[1; 9])));
    assert_finds(&[418], |s| s.edit_inode(SYMLINK, |i| i.size += 1));
    assert_finds(&[418], |s| s.unset(Key::new(SYMLINK, Kind::Symlink, 0, 0)));
    assert_finds(&[703], |s| s.edit_inode(FILE, |i| i.size -= 100));
}

#[test]
fn attributes_in_pieces() {
    let first = |s: &State| s.first(XATTR, Kind::Xattr);
    assert_finds(&[419], |s| s.unset(Key { fork: 1, ..first(s).0 }));
    assert_finds(&[419], |s| s.set(Key { fork: 7, ..first(s).0 }, first(s).1));
    assert_finds(&[419], |s| {
        let (key, mut value) = first(s);
        value.pop();
        s.set(key, value);
    });
    assert_finds(&[420], |s| {
        let (key, _) = first(s);
        for fork in 0..3 {
            let value = s.live.remove(&s.cache, &Key { fork, ..key }).unwrap().unwrap();
            s.set(Key { fork, off: key.off ^ 0x1000, ..key }, value.to_vec());
        }
    });
    assert_finds(&[421], |s| s.edit_inode(XATTR, |i| i.flags = 0));
}

#[test]
fn space_that_is_miscounted() {
    assert_finds(&[501], |s| {
        let (key, e) = s.extent(FILE);
        let (size, blocks) = (20 * 4096, u64::from(e.blocks));
        s.set(Key { ino: EMPTY.0, ..key }, e.encode());
        s.segments.add_live(e.addr, e.blocks);
        s.live_blocks += blocks;
        s.named_blocks += blocks;
        s.edit_inode(EMPTY, |i| (i.size, i.blocks) = (size, blocks));
    });
    assert_finds(&[502], |s| s.segments.add_live(s.extent(FILE).1.addr, 1));
    assert_finds(&[502], |s| s.segments.sub_live(s.extent(FILE).1.addr, 1));
    assert_finds(&[503], |s| s.segments.add_history(s.extent(FILE).1.addr, 1));
    assert_finds(&[504], |s| s.segments.add_node(s.extent(FILE).1.addr.segment()));
    let numbers = edited_and_settled(3, |s| {
        let addr = s.extent(FILE).1.addr;
        let used = s.segments.iter().find(|(no, _)| *no == addr.segment()).map(|(_, u)| u.item).unwrap();
        s.segments.sub_live(addr, used.live_blocks);
        s.segments.sub_history(addr, used.history_blocks);
        s.segments.seal(addr.segment());
        s.segments.chain_contained(Seq(u64::MAX));
    });
    assert_eq!(numbers, [505].into());
    assert_finds(&[506], |s| s.segments.chain_written(SegmentNo(30), Seq(1 << 40)));
    assert_finds(&[508], |s| s.live_blocks += 1);
    assert_finds(&[508], |s| s.history_blocks += 1);
    assert_finds(&[508], |s| s.inodes += 1);
    assert_finds(&[508], |s| s.named_blocks += 1);
    assert_finds(&[508], |s| s.promised_blocks += 1);
    assert_finds(&[509], |s| s.next_ino = DEAD);
    assert_finds(&[108], |s| s.open_cno = s.open_cno.next());
}

#[test]
fn content_among_nodes() {
    let index =
        |s: &State| -> Vec<SegmentNo> { s.segments.iter().filter(|(_, u)| u.nodes > 0).map(|(n, _)| n).collect() };
    let opened = recover(&[volume()], &MountOptions::default()).unwrap();
    // Some of these segments hold nodes that the next checkpoint does not write again.
    let numbers: Vec<BTreeSet<u16>> = index(&opened.state)
        .into_iter()
        .map(|segment| {
            edited_and_settled(2, |s| {
                let (key, e) = s.extent(FILE);
                s.segments.sub_live(e.addr, e.blocks);
                s.segments.add_live(Addr::new(segment, 0), e.blocks);
                s.set(key, Extent { addr: Addr::new(segment, 0), ..e }.encode());
            })
        })
        .collect();
    assert!(numbers.contains(&[507].into()), "{numbers:?}");
}

#[test]
fn a_past_that_cannot_have_been() {
    assert_finds(&[601, 604], |s| {
        let (key, inode) = s.past(SMALL);
        s.set_past(key.died(1), &Inode { birth: Cno(1), ..inode });
        s.history[0].deaths.0 = Cno(1);
    });
    assert_finds(&[602], |s| s.history[0].deaths = (s.open_cno, s.open_cno));
    assert_finds(&[603], |s| {
        let (key, inode) = s.past(SMALL);
        s.set_past(key, &Inode { birth: Cno(1), ..inode });
    });
    assert_finds(&[603], |s| {
        let (key, _) = s.past(SMALL);
        s.edit_inode(SMALL, |i| i.birth = Cno(key.death - 1));
    });
    assert_finds(&[604], |s| s.apply(&Record::DropCheckpoints { cnos: vec![Cno(1)] }, Addr::NONE).unwrap());
    assert_finds(&[605], |s| s.apply(&Record::NameCheckpoint { cno: Cno(2), name: b"first" }, Addr::NONE).unwrap());
    assert_finds(&[605], |s| {
        let (key, value) = s.space.next(&s.cache, &Key::space(Kind::Checkpoint, 0, 0)).unwrap().unwrap();
        s.set_space(Key { off: 0, ..key }, value.to_vec());
        s.apply(&Record::NameCheckpoint { cno: Cno(1), name: b"other" }, Addr::NONE).unwrap();
    });
}

#[test]
fn owners_of_shared_blocks() {
    let share = |s: &mut State| {
        s.apply(&Record::Share { ino: FILE, from: 0, blocks: 20 }, Addr::NONE).unwrap();
        let (key, e) = s.extent(FILE);
        assert!(e.is_shared());
        (key, e)
    };
    let flagged = |e: &Extent, flags| Extent { flags, ..e.clone() }.encode();
    assert_finds(&[], |s| drop(share(s)));
    // A second owner, as a commit makes it, costs nothing.
    assert_finds(&[], |s| {
        let (_, e) = share(s);
        let (live, named) = (s.live_blocks, s.named_blocks);
        let ops = vec![ContentOp::Extent(0, e.clone())];
        let (mtime, ctime) = (Time(1), Time(1));
        let size = u64::from(e.blocks) * 4096;
        s.apply(&Record::Content { ino: EMPTY, size, mtime, ctime, editor_uid: 0, ops }, Addr::NONE).unwrap();
        assert_eq!((s.live_blocks, s.named_blocks), (live, named + u64::from(e.blocks)));
    });
    assert_finds(&[510], |s| {
        let (key, e) = s.extent(FILE);
        s.set(key, flagged(&e, EXTENT_SHARED));
    });
    assert_finds(&[511], |s| {
        let (key, e) = share(s);
        s.set(key, flagged(&e, 0));
    });
    assert_finds(&[510, 511], |s| {
        let (key, e) = share(s);
        let (k, b) = s.backref(&key, e.addr).unwrap().unwrap();
        s.set_space(k, Backref { blocks: b.blocks - 1, ..b }.encode());
    });
    // The same owner twice.
    assert_finds(&[511], |s| {
        let (key, e) = share(s);
        let (k, b) = s.backref(&key, e.addr).unwrap().unwrap();
        s.set_space(Key { off: k.off + 1, ..k }, b.encode());
    });
    // Shared by one, and another does not know.
    assert_finds(&[501, 502, 508], |s| {
        let (_, e) = share(s);
        s.set(Key::new(EMPTY, Kind::Extent, 0, 0), flagged(&e, 0));
        s.edit_inode(EMPTY, |i| (i.blocks, i.size) = (u64::from(e.blocks), u64::from(e.blocks) * 4096));
    });
}

#[test]
fn findings_tell_where() {
    let device = volume();
    let options = MountOptions::default();
    let mut opened = recover(std::slice::from_ref(&device), &options).unwrap();
    opened.state.edit_inode(SMALL, |i| i.nlink += 1);
    Fs::assemble(opened, Arc::new(TestClock::default()), options).index_checkpoint(true).unwrap();
    let report = check(&[device], &CheckOptions::default(), &mut |_| {}).unwrap();
    let [f] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((f.what, f.ino, f.path.as_deref()), (What::LinkCountWrong, Some(SMALL), Some(&b"/dir/sub/small"[..])));
    assert!(!report.clean() && report.errors == 1 && report.total() == 1);
    assert_eq!(f.to_string(), "309 link-count-wrong: 2 stated, 1 names; path /dir/sub/small; inode 19");
}

/// Deep below directories with long names, and below short ones in a circle.
#[test]
fn of_a_path_the_end_is_told() {
    let device = volume();
    let fs = Fs::open(vec![device.clone()], Arc::new(TestClock::default()), MountOptions::default()).unwrap();
    let mut dirs = vec![DIR];
    for i in 0..40 {
        let name = [format!("{i:02}").as_bytes(), &[b'n'; 253]].concat();
        dirs.push(fs.create(dirs[i], &name, &new(0o040_755)).unwrap().ino);
    }
    fs.close().unwrap();
    drop(fs);
    let opened = recover(&[device], &MountOptions::default()).unwrap();
    let path = |ino| paths::of_inode(&opened.state, ino);
    assert!(path(dirs[15]).is_some_and(|p| p.starts_with(b"/dir/00nn") && p.len() == 4 + 15 * 256));
    let deepest = path(dirs[40]).unwrap();
    assert!(deepest.len() <= paths::PATH_BYTES_MAX && deepest.starts_with("…/25nn".as_bytes()), "{}", deepest.len());
    let of_name = paths::of_name(&opened.state, dirs[40], b"name").unwrap();
    assert!(
        of_name.len() <= paths::PATH_BYTES_MAX && of_name.starts_with("…/".as_bytes()) && of_name.ends_with(b"n/name")
    );
    let one = paths::shortened([&[b'x'; 5000], &b"/"[..]].concat());
    assert_eq!(one, "…/".as_bytes());
    assert!(paths::shortened(vec![b'x'; 5000]).len() == paths::PATH_BYTES_MAX);
}

#[test]
fn directories_in_a_circle_have_no_path() {
    let device = volume();
    let mut opened = recover(&[device], &MountOptions::default()).unwrap();
    let s = &mut opened.state;
    let (key, value) = s.live.next(&s.cache, &Key::new(DIR, Kind::Link, 0, 0)).unwrap().unwrap();
    let link = Dirent::decode(&value).unwrap();
    s.set(key, Dirent { ino: SUB, ..link }.encode());
    assert_eq!(paths::of_inode(s, FILE), None);
    assert_eq!(paths::of_inode(s, SYMLINK).as_deref(), Some(&b"/link"[..]));
}

#[test]
fn any_item_with_any_bytes_ends_in_a_report() {
    let mut random = Prng::new(11);
    let mut seen = BTreeSet::new();
    for _ in 0..250 {
        let numbers = edited_and_settled(1, |s| {
            for _ in 0..1 + random.below(3) {
                let mut all = Vec::new();
                let trees = [&s.live, &s.space, &s.history[0].tree];
                let which = random.below(3) as usize;
                trees[which]
                    .walk(&s.cache, &mut |k, v| {
                        all.push((*k, v.to_vec()));
                        Ok(())
                    })
                    .unwrap();
                let (mut key, mut value) = all.swap_remove(random.below(all.len() as u64) as usize);
                let i = random.below(value.len() as u64) as usize;
                match random.below(6) {
                    0 => value[i] = random.below(256) as u8,
                    1 => value[i] ^= 1 << random.below(8),
                    2 => value[i / 8 * 8..].iter_mut().take(8).for_each(|b| *b = 0xff),
                    3 => value.truncate(i),
                    4 => key.off = key.off.wrapping_add([1, 1 << 40, u64::MAX][random.below(3) as usize]),
                    _ => key.ino = [0, 1, 16, 18, u64::MAX][random.below(5) as usize],
                }
                match which {
                    0 => s.live.insert(&s.cache, key, value.into()),
                    1 => s.space.insert(&s.cache, key, value.into()),
                    _ => s.history[0].tree.insert(&s.cache, key, value.into()),
                }
                .unwrap();
            }
        });
        seen.extend(numbers);
    }
    assert!(seen.len() > 20, "{seen:?}");
}
