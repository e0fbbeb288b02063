//! One figure over several runs of the same thing: the middle, and how far apart they lie.

use serde::Serialize;

/// The middle of several runs, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the runs are at most this; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of these values; none of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let (low, high) = (
            values.get((values.len() - 1) / 2)?,
            values.get(values.len() / 2)?,
        );
        Some(Spread {
            median: (low + high) / 2.0,
            least,
            greatest,
        })
    }

    /// The median, and the range if there is one.
    pub fn text(&self) -> String {
        let Spread {
            median,
            least,
            greatest,
        } = self;
        match least == greatest {
            true => format!("{median:.2}"),
            false => format!("{median:.2} ({least:.2} … {greatest:.2})"),
        }
    }

    /// In another unit.
    pub fn scaled(self, factor: f64) -> Spread {
        Spread {
            median: self.median * factor,
            least: self.least * factor,
            greatest: self.greatest * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_of_runs_has_a_middle_too() {
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(
            (spread.median, spread.least, spread.greatest),
            (2.5, 1.0, 4.0)
        );
        assert_eq!(spread.scaled(0.1).text(), "0.25 (0.10 … 0.40)");
        assert_eq!(Spread::of([1.5]).unwrap().text(), "1.50");
        assert_eq!(Spread::of([]), None);
    }
}
