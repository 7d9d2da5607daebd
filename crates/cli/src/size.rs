//! Sizes and durations as people write them, and as people read them.

/// Bytes from `512`, `64K`, `1.5G`; the letters are powers of 1024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (number, shift) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    scaled(number, 1 << shift)
}

/// Nanoseconds from `5`, `0.5` (seconds), `100ms`, `5s`, `2m`.
pub fn parse_seconds(text: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    if let Some(number) = text.strip_suffix("ms") {
        scaled(number, 1_000_000)
    } else if let Some(number) = text.strip_suffix('s') {
        scaled(number, SECOND)
    } else if let Some(number) = text.strip_suffix('m') {
        scaled(number, 60 * SECOND)
    } else {
        scaled(text, SECOND)
    }
}

/// `number`, with up to nine decimals, times `unit`.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > 9 || number.ends_with('.') {
        return None;
    }
    let fraction = if part.is_empty() { 0 } else { part.parse::<u128>().ok()? };
    let fraction = fraction * u128::from(unit) / 10u128.pow(part.len() as u32);
    let total = whole.parse::<u128>().ok()?.checked_mul(u128::from(unit))?.checked_add(fraction)?;
    u64::try_from(total).ok()
}

/// `1.5G`, `640K`, `0`: for tables, rounded to one decimal.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    if unit == 0 || tenths % 10 == 0 || tenths >= 1000 {
        format!("{}{}", tenths.div_ceil(10), UNITS[unit])
    } else {
        format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5M", 3 << 19),
            ("10G", 10 << 30),
            ("2T", 2 << 40),
            ("1GiB", 1 << 30),
            ("512B", 512),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "1.", ".5G", "-1", "1X", "1 G", "99999999999T", "1e3", "0x10"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, millis) in [("5", 5000), ("0.5", 500), ("100ms", 100), ("2m", 120_000), ("5s", 5000), ("0", 0)] {
            assert_eq!(parse_seconds(text), Some(millis * 1_000_000), "{text}");
        }
        for text in ["", "s", "5h", "-5", "1..2"] {
            assert_eq!(parse_seconds(text), None, "{text}");
        }
    }

    #[test]
    fn shown_sizes() {
        for (bytes, text) in [(0, "0"), (999, "999"), (1024, "1K"), (1536, "1.5K"), (10 << 30, "10G"), (1 << 30, "1G")]
        {
            assert_eq!(show_bytes(bytes), text);
        }
        assert_eq!(show_bytes(u64::MAX), "16777216T");
    }
}
