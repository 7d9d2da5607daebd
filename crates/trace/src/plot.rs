//! Plots as SVG without scripts, and the page that holds them. Colours are
//! variables of the page's style, so that one drawing serves light and dark.

use crate::analysis::Series;
use std::fmt::Write as _;

/// Colours that series take in turn.
pub const COLOURS: usize = 8;
const LEFT: u32 = 88;
const TOP: u32 = 10;
const WIDTH: u32 = 720;
const BOTTOM: u32 = 36;
const RIGHT: u32 = 12;

/// The style that plots and page need, with both themes.
pub const STYLE: &str = "\
:root{--bg:#fff;--fg:#1b1f24;--dim:#5b6470;--line:#d5dae0;--box:#f6f8fa;\
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#8a6d00;--c5:#56b4e9;--c6:#7a3db8;--c7:#444}\n\
@media(prefers-color-scheme:dark){:root:not([data-theme=light]){--bg:#14171a;--fg:#e6e9ec;--dim:#98a2ad;--line:#363c43;--box:#1d2125;\
--c0:#4aa8e8;--c1:#ff8a3d;--c2:#2fcf9f;--c3:#f0a3cc;--c4:#e0c341;--c5:#8fd0ff;--c6:#b88cf0;--c7:#bbb}}\n\
:root[data-theme=dark]{--bg:#14171a;--fg:#e6e9ec;--dim:#98a2ad;--line:#363c43;--box:#1d2125;\
--c0:#4aa8e8;--c1:#ff8a3d;--c2:#2fcf9f;--c3:#f0a3cc;--c4:#e0c341;--c5:#8fd0ff;--c6:#b88cf0;--c7:#bbb}\n\
svg text{fill:var(--fg);font:12px system-ui,sans-serif}svg .dim{fill:var(--dim)}svg .axis{stroke:var(--line);fill:none}\
svg .plot{fill:var(--box);stroke:var(--line)}";

const PAGE: &str = "\
body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;max-width:78rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-top:1px solid var(--line);padding-top:1rem}h3{font-size:1rem}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
th,td{padding:.2rem .55rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:600}\
figure{margin:1rem 0}figcaption{color:var(--dim);font-size:.9rem}svg{max-width:100%;height:auto}\
.note{background:var(--box);border-left:3px solid var(--c1);padding:.4rem .8rem;margin:.5rem 0}\
.answer{background:var(--box);border-left:3px solid var(--c2);padding:.6rem .9rem}\
button{position:absolute;top:1rem;right:1rem;font:inherit;color:var(--fg);background:var(--box);border:1px solid var(--line);border-radius:4px}";

/// What makes text harmless within a page.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A page that needs nothing else.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\n<style>{STYLE}{PAGE}</style></head>\n<body>\n\
         <button onclick=\"let r=document.documentElement,d=matchMedia('(prefers-color-scheme:dark)').matches;\
         r.dataset.theme=(r.dataset.theme||(d?'dark':'light'))=='dark'?'light':'dark'\">light / dark</button>\n\
         <h1>{title}</h1>\n{body}</body></html>\n"
    )
}

/// A table; the first column is text, the others numbers.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::from("<div class=\"wide\"><table><thead><tr>");
    for h in head {
        let _ = write!(out, "<th>{}</th>", escape(h));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The drawing as a file by itself.
#[must_use]
pub fn standalone(svg: &str) -> String {
    svg.replacen(
        '>',
        &format!(" xmlns=\"http://www.w3.org/2000/svg\"><style>{STYLE}svg{{background:var(--bg)}}</style>"),
        1,
    )
}

/// Seconds, as short as can be.
fn show_time(nanos: u64) -> String {
    match nanos {
        0 => "0".into(),
        n if n < 1_000_000 => format!("{} µs", n / 1000),
        n if n < 10_000_000_000 => format!("{:.3} s", n as f64 / 1e9).replace("000 s", " s").replace(". s", " s"),
        n => format!("{:.0} s", n as f64 / 1e9),
    }
}

/// Bytes in powers of 1024.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (0..units.len() - 1)
        .find(|u| bytes < 10240u64.checked_shl(10 * *u as u32).unwrap_or(u64::MAX))
        .unwrap_or(units.len() - 1);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let text = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), units[unit])
}

/// Begins a drawing: frame, labels of both axes, legend.
fn frame(out: &mut String, height: u32, label: &str, legend: &[&str]) {
    let total = height + TOP + BOTTOM + legend.len().div_ceil(4) as u32 * 18;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {} {total}\" role=\"img\" aria-label=\"{}\">\
         <rect class=\"plot\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{height}\"/>",
        LEFT + WIDTH + RIGHT,
        escape(label)
    );
    for (i, name) in legend.iter().enumerate() {
        let (x, y) = (LEFT + i as u32 % 4 * (WIDTH / 4), TOP + height + BOTTOM + i as u32 / 4 * 18);
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" style=\"fill:var(--c{})\"/><text x=\"{}\" y=\"{}\">{}</text>",
            i % COLOURS,
            x + 17,
            y + 10,
            escape(name)
        );
    }
}

/// Labels below: parts of a whole time.
fn time_axis(out: &mut String, height: u32, nanos: u64) {
    for i in 0..=4u32 {
        let x = LEFT + WIDTH * i / 4;
        let anchor = ["start", "middle", "middle", "middle", "end"][i as usize];
        let text = show_time(nanos * u64::from(i) / 4);
        let y = TOP + height + 16;
        let _ = write!(out, "<text class=\"dim\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
    }
}

/// Labels at the left, from bottom to top.
fn value_axis(out: &mut String, height: u32, labels: &[String]) {
    let steps = labels.len().saturating_sub(1).max(1) as u32;
    for (i, text) in labels.iter().enumerate() {
        let y = TOP + height - height * i as u32 / steps;
        if i > 0 && i as u32 != steps {
            let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {y}h{WIDTH}\"/>");
        }
        let _ = write!(
            out,
            "<text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6,
            (y + 4).max(TOP + 9)
        );
    }
}

/// Where requests went, and when: time from left to right, place from bottom to
/// top, series over each other. All series have the same range.
#[must_use]
pub fn places(series: &[Series], label: &str) -> String {
    const HEIGHT: u32 = 300;
    let mut out = String::new();
    let legend: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
    frame(&mut out, HEIGHT, label, &legend);
    if let Some(first) = series.first() {
        let (nanos, low, high) = first.grid.range();
        time_axis(&mut out, HEIGHT, nanos);
        let at = |i: u64| show_bytes((low + (high - low) / 4 * i) * crate::SECTOR_BYTES);
        value_axis(&mut out, HEIGHT, &[at(0), at(1), at(2), at(3), show_bytes(high * crate::SECTOR_BYTES)]);
    }
    for (i, s) in series.iter().enumerate() {
        let (columns, rows) = s.grid.size();
        let (sx, sy) = (f64::from(WIDTH) / f64::from(columns), f64::from(HEIGHT) / f64::from(rows));
        // Units of the grid, mirrored so that row 0 is at the bottom.
        let _ = write!(
            out,
            "<g transform=\"translate({LEFT} {}) scale({sx:.4} {:.4})\"><path style=\"stroke:var(--c{});stroke-width:1.3;opacity:.85\" d=\"",
            TOP + HEIGHT,
            -sy,
            i % COLOURS
        );
        let (mut x, mut y) = (0i64, 0i64);
        for (row, column, run) in s.grid.runs() {
            // Relative, since that is shorter.
            let _ = write!(out, "m{} {}h{run}", i64::from(column) - x, i64::from(row) - y);
            (x, y) = (i64::from(column) + i64::from(run), i64::from(row));
        }
        out.push_str("\" transform=\"translate(0 .5)\"/></g>");
    }
    out.push_str("</svg>");
    out
}

/// How long a bar is for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Twice as long is twice as much.
    Linear,
    /// Each step is ten times as much.
    Log,
}

impl Scale {
    /// The part of `max` that is shown for a value.
    fn part(self, value: u64, max: u64) -> f64 {
        match self {
            Self::Linear => value as f64 / max as f64,
            Self::Log => (value as f64 + 1.0).ln() / (max as f64 + 1.0).ln(),
        }
    }
    /// Labels of the axis, and the value at its top.
    fn axis(self, largest: u64) -> (u64, Vec<String>) {
        match self {
            Self::Linear => (largest, vec!["0".into(), (largest / 2).to_string(), largest.to_string()]),
            Self::Log => {
                let steps = largest.max(1).ilog10() + 1;
                let labels = (0..=steps).map(|n| if n == 0 { "0".into() } else { 10u64.saturating_pow(n).to_string() });
                (10u64.saturating_pow(steps), labels.collect())
            }
        }
    }
}

/// Bars in groups: a group for each label, a bar for each series.
#[must_use]
pub fn bars(labels: &[String], series: &[(String, Vec<u64>)], scale: Scale, label: &str) -> String {
    const HEIGHT: u32 = 200;
    let mut out = String::new();
    let legend: Vec<&str> = series.iter().map(|s| s.0.as_str()).collect();
    frame(&mut out, HEIGHT, label, &legend);
    let (max, text) = scale.axis(series.iter().flat_map(|s| &s.1).copied().max().unwrap_or(0).max(1));
    value_axis(&mut out, HEIGHT, &text);
    let group = f64::from(WIDTH) / labels.len().max(1) as f64;
    let bar = (group * 0.8 / series.len().max(1) as f64).min(40.0);
    for (g, text) in labels.iter().enumerate() {
        let left = f64::from(LEFT) + group * g as f64;
        let middle = left + group / 2.0;
        let y = TOP + HEIGHT + 16;
        let _ = write!(
            out,
            "<text class=\"dim\" x=\"{middle:.0}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            escape(text)
        );
        for (i, (_, values)) in series.iter().enumerate() {
            let value = values.get(g).copied().unwrap_or(0);
            // What is there is seen, however little.
            let tall = if value == 0 { 0.0 } else { (scale.part(value, max) * f64::from(HEIGHT)).max(1.0) };
            let x = middle - bar * series.len() as f64 / 2.0 + bar * i as f64;
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" style=\"fill:var(--c{})\"><title>{value}</title></rect>",
                f64::from(TOP + HEIGHT) - tall,
                (bar - 1.0).max(0.5),
                i % COLOURS
            );
        }
    }
    out.push_str("</svg>");
    out
}

/// Bytes for each second over time, a line for each series; `bins` are bytes in
/// equal parts of `nanos`.
#[must_use]
pub fn rates(series: &[(String, Vec<u64>)], nanos: u64, label: &str) -> String {
    const HEIGHT: u32 = 160;
    let mut out = String::new();
    let legend: Vec<&str> = series.iter().map(|s| s.0.as_str()).collect();
    frame(&mut out, HEIGHT, label, &legend);
    time_axis(&mut out, HEIGHT, nanos);
    let max = series.iter().flat_map(|s| &s.1).copied().max().unwrap_or(0).max(1);
    let bins = series.iter().map(|s| s.1.len()).max().unwrap_or(1).max(1);
    let rate = |bytes: u64| (bytes as f64 * bins as f64 / (nanos.max(1) as f64 / 1e9)) as u64;
    let text = |part: u64| format!("{}/s", show_bytes(rate(max * part / 2)));
    value_axis(&mut out, HEIGHT, &["0".into(), text(1), text(2)]);
    for (i, (_, values)) in series.iter().enumerate() {
        let _ = write!(out, "<path style=\"fill:none;stroke:var(--c{});stroke-width:1.5\" d=\"", i % COLOURS);
        for (n, bytes) in values.iter().enumerate() {
            let x = f64::from(LEFT) + f64::from(WIDTH) * (n as f64 + 0.5) / bins as f64;
            let y = f64::from(TOP) + f64::from(HEIGHT) * (1.0 - *bytes as f64 / max as f64);
            let _ = write!(out, "{}{x:.1} {y:.1}", if n == 0 { "M" } else { "L" });
        }
        out.push_str("\"/>");
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Grid;

    /// Every element that is opened is closed, in order.
    fn well_formed(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap();
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{svg}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn drawings_are_well_formed() {
        let mut grid = Grid::new(100, 50, 1000, 0, 5000);
        grid.add(5, 10, 90);
        let names = |n: &str| Series { name: n.into(), grid: grid.clone() };
        well_formed(&places(&[names("<a>"), names("b")], "x"));
        well_formed(&places(&[], "x"));
        well_formed(&bars(
            &["4K".into(), "8K".into()],
            &[("a".into(), vec![1, 0]), ("b".into(), vec![])],
            Scale::Linear,
            "x",
        ));
        well_formed(&bars(&[], &[], Scale::Log, "x"));
        well_formed(&rates(&[("a".into(), vec![1, 2, 3])], 5, "x"));
        well_formed(&rates(&[("a".into(), vec![])], 0, "x"));
        let alone = standalone(&bars(&[], &[], Scale::Linear, "x"));
        assert!(
            alone.starts_with("<svg viewBox") && alone.contains("xmlns=") && alone.contains("prefers-color-scheme")
        );
    }

    #[test]
    fn scales() {
        assert_eq!(Scale::Log.axis(2500), (10_000, ["0", "10", "100", "1000", "10000"].map(String::from).to_vec()));
        assert!(Scale::Log.part(0, 100) == 0.0 && Scale::Log.part(100, 100) == 1.0);
        assert!((Scale::Linear.part(25, 100) - 0.25).abs() < 1e-9);
        assert_eq!(Scale::Log.axis(u64::MAX).0, u64::MAX);
    }

    #[test]
    fn text_is_harmless() {
        assert_eq!(escape("<a href=\"x\">&\u{1b}"), "&lt;a href=&quot;x&quot;&gt;&amp;\u{fffd}");
        let html = page("<t>", &table(&["a", "<b>"], &[vec!["<script>".into(), "1".into()]]));
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;") && html.contains("<title>&lt;t&gt;"));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "the page needs {outside}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [show_bytes(0), show_bytes(4096), show_bytes(1536 << 10), show_bytes(32 << 30)],
            ["0 B", "4096 B", "1536 KiB", "32 GiB"]
        );
        assert_eq!(show_bytes(u64::MAX), "16384 PiB");
        assert_eq!(
            [show_time(0), show_time(500_000_000), show_time(2_000_000_000), show_time(90_000_000_000)],
            ["0", "0.500 s", "2 s", "90 s"]
        );
    }
}
