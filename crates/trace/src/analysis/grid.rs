//! Points on a grid, so that a plot of a million requests stays small.

use std::collections::BTreeSet;

/// Cells of a plot that hold something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    columns: u32,
    rows: u32,
    x_max: u64,
    y_min: u64,
    y_max: u64,
    cells: BTreeSet<(u32, u32)>,
}

/// Cells under one name.
#[derive(Clone, Debug)]
pub struct Series {
    /// What is shown in the legend.
    pub name: String,
    /// Where something is.
    pub grid: Grid,
}

impl Grid {
    /// `columns` cells for 0 to `x_max`, `rows` for `y_min` to `y_max`.
    #[must_use]
    pub fn new(columns: u32, rows: u32, x_max: u64, y_min: u64, y_max: u64) -> Self {
        let (columns, rows) = (columns.max(1), rows.max(1));
        Self { columns, rows, x_max: x_max.max(1), y_min, y_max: y_max.max(y_min + 1), cells: BTreeSet::new() }
    }
    /// Marks what is at `x` from `y` up to before `y_end`.
    pub fn add(&mut self, x: u64, y: u64, y_end: u64) {
        let cell = |v: u64, min: u64, max: u64, n: u32| {
            let part = u128::from(v.clamp(min, max) - min) * u128::from(n) / u128::from(max - min);
            (part as u32).min(n - 1)
        };
        let column = cell(x, 0, self.x_max, self.columns);
        let low = cell(y, self.y_min, self.y_max, self.rows);
        let high = cell(y_end.saturating_sub(1).max(y), self.y_min, self.y_max, self.rows);
        self.cells.extend((low..=high).map(|row| (row, column)));
    }
    /// Runs of cells: row, first column, columns.
    #[must_use]
    pub fn runs(&self) -> Vec<(u32, u32, u32)> {
        let mut out: Vec<(u32, u32, u32)> = Vec::new();
        for &(row, column) in &self.cells {
            match out.last_mut() {
                Some(last) if last.0 == row && last.1 + last.2 == column => last.2 += 1,
                _ => out.push((row, column, 1)),
            }
        }
        out
    }
    /// Columns and rows.
    #[must_use]
    pub const fn size(&self) -> (u32, u32) {
        (self.columns, self.rows)
    }
    /// The greatest time, and the range of places.
    #[must_use]
    pub const fn range(&self) -> (u64, u64, u64) {
        (self.x_max, self.y_min, self.y_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_runs() {
        let mut g = Grid::new(10, 4, 100, 1000, 1400);
        g.add(0, 1000, 1001);
        g.add(15, 1000, 1001);
        g.add(100, 1399, 5000);
        g.add(50, 1000, 1300);
        assert_eq!(g.runs(), [(0, 0, 2), (0, 5, 1), (1, 5, 1), (2, 5, 1), (3, 9, 1)]);
        // Nothing is out of range, and an empty range has room.
        g.add(u64::MAX, 0, 0);
        Grid::new(0, 0, 0, 5, 5).add(3, u64::MAX, 0);
    }
}
