//! Entries of leaves: what the entry before them all says already is left out.
//!
//! A leaf begins with its first key, the *base*. Of the key of an entry only the difference to it is stored, and of an extent
//! only what is not usual, all numbers in as few bytes as they need. An extent of one block, in a leaf of one file
//! that was written at random, takes 13 to 18 bytes, where its key and value are 57.
//!
//! What an entry takes depends on the base and on itself, not on its neighbours, so that a leaf knows its size while it
//! changes.

use std::sync::Arc;

use crate::items::{EXTENT_UNWRITTEN, ExtentDisk};
use crate::key::{Key, Kind};
use crate::wire::Reader;
use crate::{Addr, EXTENT_BLOCKS_MAX, Invalid};

/// Same inode, kind and fork as the base: the offset is stored as its distance.
pub const ENTRY_NEAR: u8 = 1;
/// A death is stored.
pub const ENTRY_DEATH: u8 = 2;
/// The value is a packed extent.
pub const ENTRY_EXTENT: u8 = 4;
/// One block with a checksum, and no flags.
pub const ENTRY_SINGLE: u8 = 8;
/// Of an extent: no place is stored, since nothing is allocated.
pub const ENTRY_NOWHERE: u8 = 16;

/// Most bytes that an entry takes besides its value: the byte that tells its form, inode, kind, fork, offset, death, length.
pub const LEAF_ENTRY_EXTRA: usize = 1 + 10 + 1 + 5 + 10 + 10 + 2;

/// Bytes of a number: seven bits in each, the lowest first.
const fn number_bytes(v: u64) -> usize {
    (64 - (v | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a number, seven bits in a byte, the lowest first; all bytes but the last have the highest bit set.
fn put_number(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// The number that [`put_number`] wrote, in as few bytes as it takes.
fn take_number(r: &mut Reader<'_>) -> Result<u64, Invalid> {
    let mut v = 0;
    for shift in (0..64).step_by(7) {
        let byte = r.u8()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || byte == 0 && shift > 0 {
            return Err(Invalid::Bounds);
        }
        v |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(v);
        }
    }
    Err(Invalid::Bounds)
}

/// An extent as it is packed.
struct Packed<'a> {
    disk: ExtentDisk,
    form: u8,
    crcs: &'a [u8],
}

/// Where an extent lies, as it is packed: segment and block; nothing for what has no place, `None` for other addresses.
fn place(addr: u64) -> Option<Option<(u64, u64)>> {
    match addr {
        a if a == Addr::NONE.0 => Some(None),
        a if a >> 62 == 0 => Some(Some((a >> Addr::BLOCK_BITS, a & ((1 << Addr::BLOCK_BITS) - 1)))),
        _ => None,
    }
}

/// Checksums that an extent has.
const fn granules(disk: &ExtentDisk) -> Option<usize> {
    if disk.flags & EXTENT_UNWRITTEN != 0 {
        return Some(0);
    }
    let covered = disk.lead as usize + disk.blocks.get() as usize + disk.tail as usize;
    if disk.granule_shift > 4 || covered % (1 << disk.granule_shift) != 0 {
        return None;
    }
    Some(covered >> disk.granule_shift)
}

impl<'a> Packed<'a> {
    /// How a value is packed: nothing where it is no extent as [`crate::items::Extent::encode`] makes them.
    fn of(key: &Key, value: &'a [u8]) -> Option<Self> {
        if key.kind != Kind::Extent {
            return None;
        }
        let (disk, crcs) = ExtentDisk::read_prefix(value).ok()?;
        let blocks = u32::from(disk.blocks.get());
        let usual = disk.reserved.get() == 0 && blocks > 0 && blocks <= EXTENT_BLOCKS_MAX;
        if !usual || granules(&disk)? * 4 != crcs.len() {
            return None;
        }
        let nowhere = place(disk.addr.get())?.is_none();
        let plain = blocks == 1 && (disk.flags, disk.granule_shift, disk.lead, disk.tail) == (0, 0, 0, 0);
        let form = ENTRY_EXTENT | if nowhere { ENTRY_NOWHERE } else { 0 } | if plain { ENTRY_SINGLE } else { 0 };
        Some(Self { disk, form, crcs })
    }

    fn bytes(&self) -> usize {
        let d = &self.disk;
        let place = place(d.addr.get()).flatten().map_or(0, |(s, b)| number_bytes(s) + number_bytes(b));
        let rest = if self.form & ENTRY_SINGLE != 0 { 0 } else { 5 };
        number_bytes(d.birth.get()) + place + rest + self.crcs.len()
    }

    fn put(&self, out: &mut Vec<u8>) {
        let d = &self.disk;
        put_number(out, d.birth.get());
        if let Some((segment, block)) = place(d.addr.get()).flatten() {
            put_number(out, segment);
            put_number(out, block);
        }
        if self.form & ENTRY_SINGLE == 0 {
            out.extend_from_slice(&[(d.blocks.get() - 1) as u8, d.flags, d.granule_shift, d.lead, d.tail]);
        }
        out.extend_from_slice(self.crcs);
    }

    /// The value that was packed.
    fn take(form: u8, r: &mut Reader<'_>) -> Result<Arc<[u8]>, Invalid> {
        let mut d = ExtentDisk::zeroed();
        d.birth.set(take_number(r)?);
        d.addr.set(Addr::NONE.0);
        if form & ENTRY_NOWHERE == 0 {
            let (segment, block) = (take_number(r)?, take_number(r)?);
            if segment >> (62 - Addr::BLOCK_BITS) != 0 || block >> Addr::BLOCK_BITS != 0 {
                return Err(Invalid::Bounds);
            }
            d.addr.set(segment << Addr::BLOCK_BITS | block);
        }
        d.blocks.set(1);
        if form & ENTRY_SINGLE == 0 {
            d.blocks.set(u16::from(r.u8()?) + 1);
            (d.flags, d.granule_shift, d.lead, d.tail) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        }
        let crcs = r.take(granules(&d).ok_or(Invalid::Bounds)? * 4)?;
        let mut value = [0; ExtentDisk::BYTES + 4];
        value[..ExtentDisk::BYTES].copy_from_slice(d.bytes());
        if let [a, b, c, e] = crcs {
            value[ExtentDisk::BYTES..].copy_from_slice(&[*a, *b, *c, *e]);
            return Ok(value.as_slice().into());
        }
        Ok([d.bytes(), crcs].concat().into())
    }
}

const fn is_near(base: &Key, key: &Key) -> bool {
    base.ino == key.ino && base.kind as u8 == key.kind as u8 && base.fork == key.fork && base.off <= key.off
}

/// Bytes of this entry in a leaf that begins with the key `base`, which is not greater.
#[must_use]
pub fn entry_bytes(base: &Key, key: &Key, value: &[u8]) -> usize {
    let place = if is_near(base, key) {
        number_bytes(key.off - base.off)
    } else {
        let ino = key.ino.saturating_sub(base.ino);
        number_bytes(ino) + 1 + number_bytes(u64::from(key.fork)) + number_bytes(key.off)
    };
    let death = if key.death == 0 { 0 } else { number_bytes(key.death) };
    let plain = || number_bytes(value.len() as u64) + value.len();
    1 + place + death + Packed::of(key, value).map_or_else(plain, |p| p.bytes())
}

/// Whether two values of a key take as many bytes, as far as their lengths tell.
#[must_use]
pub fn takes_as_many(key: &Key, one: &[u8], other: &[u8]) -> bool {
    key.kind != Kind::Extent && one.len() == other.len()
}

/// Appends an entry.
pub(crate) fn put_entry(out: &mut Vec<u8>, base: &Key, key: &Key, value: &[u8]) {
    let packed = Packed::of(key, value);
    let near = is_near(base, key);
    let form = packed.as_ref().map_or(0, |p| p.form);
    out.push(form | if near { ENTRY_NEAR } else { 0 } | if key.death == 0 { 0 } else { ENTRY_DEATH });
    if near {
        put_number(out, key.off - base.off);
    } else {
        put_number(out, key.ino.saturating_sub(base.ino));
        out.push(key.kind as u8);
        put_number(out, u64::from(key.fork));
        put_number(out, key.off);
    }
    if key.death != 0 {
        put_number(out, key.death);
    }
    match packed {
        Some(packed) => packed.put(out),
        None => {
            put_number(out, value.len() as u64);
            out.extend_from_slice(value);
        }
    }
}

/// The next entry.
pub(crate) fn take_entry(r: &mut Reader<'_>, base: &Key) -> Result<(Key, Arc<[u8]>), Invalid> {
    let form = r.u8()?;
    let (extent, alone) = (form & ENTRY_EXTENT != 0, form & (ENTRY_SINGLE | ENTRY_NOWHERE) == 0);
    if form >= ENTRY_NOWHERE << 1 || !extent && !alone {
        return Err(Invalid::Bounds);
    }
    let mut key = *base;
    if form & ENTRY_NEAR != 0 {
        key.off = base.off.checked_add(take_number(r)?).ok_or(Invalid::Bounds)?;
    } else {
        key.ino = base.ino.checked_add(take_number(r)?).ok_or(Invalid::Bounds)?;
        key.kind = Kind::from_u8(r.u8()?)?;
        key.fork = u32::try_from(take_number(r)?).map_err(|_| Invalid::Bounds)?;
        key.off = take_number(r)?;
    }
    key.death = if form & ENTRY_DEATH != 0 { take_number(r)? } else { 0 };
    if extent && key.kind != Kind::Extent {
        return Err(Invalid::Kind(key.kind as u8));
    }
    if extent {
        return Ok((key, Packed::take(form, r)?));
    }
    let bytes = usize::try_from(take_number(r)?).map_err(|_| Invalid::Short)?;
    Ok((key, r.take(bytes)?.into()))
}
