//! Figures from arrivals: (instant in nanoseconds, how much came).
//!
//! The ideal schedule begins with the first arrival: the i-th unit, from 0, is due i/rate after it.

use crate::meter::seconds;

type Arrivals = [(u64, u64)];

/// The median; NaN of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// A quantile; NaN of nothing. Between two values lies what lies between them.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let at = share * last as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Units a second: what came after the first read, over the time it took.
pub fn rate(arrivals: &Arrivals) -> f64 {
    let ([(first, _), rest @ ..], Some((last, _))) = (arrivals, arrivals.last()) else { return f64::NAN };
    rest.iter().map(|(_, units)| units).sum::<u64>() as f64 / seconds(*first, *last)
}

/// How far the mean rate is off, in per cent.
pub fn rate_error(arrivals: &Arrivals, wanted: f64) -> f64 {
    (rate(arrivals) / wanted - 1.0) * 100.0
}

/// The root of the mean square of what each unit is off the ideal schedule, in milliseconds.
pub fn deviation(arrivals: &Arrivals, rate: f64) -> f64 {
    let Some((began, _)) = arrivals.first() else { return f64::NAN };
    let (mut count, mut squares) = (0u64, 0.0);
    for (at, units) in arrivals {
        for i in count..count + units {
            squares += (seconds(*began, *at) - i as f64 / rate).powi(2);
        }
        count += units;
    }
    (squares / count as f64).sqrt() * 1e3
}

/// The most units in any half-open window of so many seconds.
pub fn most_within(arrivals: &Arrivals, window: f64) -> u64 {
    let (mut oldest, mut inside, mut most) = (0, 0, 0);
    for (at, units) in arrivals {
        inside += units;
        while seconds(arrivals[oldest].0, *at) >= window {
            inside -= arrivals[oldest].1;
            oldest += 1;
        }
        most = most.max(inside);
    }
    most
}

/// How many more than the ideal has came within 10 ms, at most.
pub fn above_ideal(arrivals: &Arrivals, rate: f64) -> f64 {
    // The ideal has floor(W rate) + 1 in a window that begins with a departure; the least bit more is for 0.01 x 100.
    let ideal = (0.01 * rate + 1e-9).floor() + 1.0;
    (most_within(arrivals, 0.01) as f64 - ideal).max(0.0)
}

/// The largest lump in milliseconds of the rate: by how much the units that came after any instant exceeded what the rate
/// allows until then. So large is the burst that a token bucket of this rate must have to let all pass.
pub fn lump(arrivals: &Arrivals, rate: f64) -> f64 {
    let Some((began, _)) = arrivals.first() else { return f64::NAN };
    let (mut sum, mut lowest, mut lump) = (0.0, f64::INFINITY, 0.0);
    for (at, units) in arrivals {
        let allowed = seconds(*began, *at) * rate;
        lowest = f64::min(lowest, sum - allowed);
        sum += *units as f64;
        lump = f64::max(lump, sum - allowed - lowest);
    }
    lump / rate * 1e3
}
