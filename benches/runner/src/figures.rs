//! Medians, and how numbers are written.

use crate::wrk::Round;

/// The one in the middle; between two, the mean of both.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// Of one figure of some rounds.
pub(crate) fn median_of(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure))
}

/// How many times as many requests `rounds` had as those beside them.
pub(crate) fn ratio(rounds: &[Round], beside: &[Round]) -> f64 {
    let pairs = rounds.iter().zip(beside);
    median(pairs.map(|(ours, theirs)| ours.requests_per_second / theirs.requests_per_second))
}

/// More of all requests than this not served, and a figure says little about those that were.
const FEW: f64 = 0.001;

/// Of all requests of some rounds, the share that was refused, failed or came late.
#[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
pub(crate) fn bad_share(rounds: &[Round]) -> f64 {
    let bad: u64 = rounds.iter().map(|round| round.said.bad()).sum();
    let all: u64 = rounds.iter().map(|round| round.said.requests + round.said.failed).sum();
    bad as f64 / all as f64
}

/// What speaks against a figure of these rounds.
pub(crate) fn doubt(of: &[&[Round]]) -> Option<String> {
    let worst = of.iter().map(|rounds| bad_share(rounds)).fold(0.0, f64::max);
    doubt_of_share(worst)
}

/// The same where so large a share wasn't served.
pub(crate) fn doubt_of_share(share: f64) -> Option<String> {
    (share > FEW).then(|| format!("{} % refused or failed", digits(share * 100.0)))
}

/// A percentile of values that are in no order; the largest for 1.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index"
)]
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// Digits enough to compare, no more.
pub(crate) fn digits(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "–".to_owned()
    } else if size >= 100.0 {
        thousands(value)
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && digit != '-' && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as milliseconds.
pub(crate) fn millis(micros: f64) -> String {
    digits(micros / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        assert!((percentile(&mut [3.0, 1.0, 2.0], 0.99) - 3.0).abs() < 1e-9);
        assert!((percentile(&mut [3.0, 1.0, 2.0, 4.0], 0.5) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        let written = [0.934, 14.55, 123.4, 1_234_567.0].map(digits);
        assert_eq!(written, ["0.93", "14.6", "123", "1,234,567"]);
    }
}
