//! Random numbers: one PCG stream per purpose, and distributions of times.
//!
//! A stream's name consists of its purpose and a number, such as ("compute", thread 7).
//! Another policy or an additional VM therefore does not change the numbers of the others (common random numbers).
//! PCG: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number Generation", 2014.
//! Names are hashed with FNV-1a.
//! Functions come from the `libm` crate, whose results are the same on every machine.

use rand_core::Rng as _;
use rand_pcg::Pcg32;
use serde::Serialize;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(Pcg32);

impl Stream {
    /// The stream of `purpose` and `number` under a seed.
    pub fn new(seed: u64, purpose: &str, number: u64) -> Stream {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let bytes = purpose.bytes().chain(number.to_le_bytes());
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Stream(Pcg32::new(seed ^ hash.rotate_left(32), hash))
    }

    /// A number below `bound`, which must be positive.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        // Lemire's multiply-shift; its bias is below bound ÷ 2³².
        ((u64::from(self.0.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    /// An exponential number with mean 1: −ln of a number in (0, 1], accurate to 10⁻⁹.
    /// Every other event draws a compute time, so this uses a table and three terms of a series instead of a general logarithm.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        // u = n ÷ 2³² with n in 1 … 2³²; n = 2^e (1 + i ÷ 256) (1 + r), r < 1 ÷ 256.
        let n = u64::from(self.0.next_u32()) + 1;
        let e = n.ilog2();
        let mantissa = n << (32 - e);
        let i = (mantissa >> 24) as usize & 0xff;
        let (logarithm, inverse) = LOGARITHMS[i];
        let r = f64::from((mantissa & 0x00ff_ffff) as u32) * inverse;
        let logarithm = logarithm + r * (1.0 - r * (0.5 - r * (1.0 / 3.0)));
        f64::from(32 - e) * core::f64::consts::LN_2 - logarithm
    }

    /// A real number in (0, 1].
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 1.0) / 4_294_967_296.0
    }
}

/// ln(1 + i ÷ 256), by the series of the inverse hyperbolic tangent, and 2⁻³² ÷ (1 + i ÷ 256).
const LOGARITHMS: [(f64, f64); 256] = {
    let mut table = [(0.0, 0.0); 256];
    let mut i = 0;
    while i < 256 {
        let x = i as f64 / 256.0;
        let z = x / (2.0 + x);
        let (mut power, mut sum, mut k) = (z, 0.0, 1);
        while k < 60 {
            sum += power / k as f64;
            power *= z * z;
            k += 2;
        }
        table[i] = (2.0 * sum, 1.0 / (4_294_967_296.0 * (1.0 + x)));
        i += 1;
    }
    table
};

/// A distribution of times, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dist {
    /// Constant.
    Constant(u64),
    /// Uniform between two times.
    Uniform(u64, u64),
    /// Exponential with this mean.
    Exponential(u64),
    /// Normal with this mean and standard deviation, cut off at zero.
    Normal(u64, u64),
    /// Pareto with this minimum and shape: heavy-tailed for shapes of 1 … 2.
    Pareto(u64, f64),
}

impl Dist {
    /// Draws a time in ns.
    #[inline]
    pub fn draw(&self, stream: &mut Stream) -> u64 {
        match *self {
            Dist::Constant(time) => time,
            Dist::Uniform(least, most) => {
                least + (stream.unit() * (most.saturating_sub(least)) as f64) as u64
            }
            // Via i64, which the processor converts in one instruction; no time exceeds it.
            Dist::Exponential(mean) => (stream.exponential() * mean as i64 as f64) as i64 as u64,
            Dist::Normal(mean, deviation) => {
                let radius = libm::sqrt(-2.0 * libm::log(stream.unit()));
                let angle = libm::cos(core::f64::consts::TAU * stream.unit());
                (mean as f64 + deviation as f64 * radius * angle).max(0.0) as u64
            }
            Dist::Pareto(least, shape) => {
                // Cutting the tail at a million times the minimum keeps times representable.
                let factor = libm::pow(stream.unit(), -1.0 / shape).min(1e6);
                (least as f64 * factor) as u64
            }
        }
    }

    /// The mean, in ns (of the uncut distribution; a Pareto of shape ≤ 1 has none).
    pub fn mean(&self) -> Option<f64> {
        match *self {
            Dist::Constant(time) | Dist::Exponential(time) | Dist::Normal(time, _) => {
                Some(time as f64)
            }
            Dist::Uniform(least, most) => Some((least + most) as f64 / 2.0),
            Dist::Pareto(least, shape) => {
                (shape > 1.0).then(|| least as f64 * shape / (shape - 1.0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_differ_by_name() {
        let draw = |purpose, number| {
            let mut stream = Stream::new(42, purpose, number);
            [stream.below(1000), stream.below(1000), stream.below(1000)]
        };
        assert_eq!(draw("compute", 7), draw("compute", 7));
        assert_ne!(draw("compute", 7), draw("compute", 8));
        assert_ne!(draw("compute", 7), draw("sleep", 7));
    }

    #[test]
    fn fast_logarithm_is_accurate() {
        let mut quick = Stream::new(3, "test", 0);
        let mut exact = quick.clone();
        for _ in 0..100_000 {
            let wanted = -libm::log(exact.unit());
            assert!((quick.exponential() - wanted).abs() < 1e-9, "{wanted}");
        }
    }

    #[test]
    fn distributions_have_their_means() {
        let mut stream = Stream::new(1, "test", 0);
        for dist in [
            Dist::Constant(1000),
            Dist::Uniform(0, 2000),
            Dist::Exponential(1000),
            Dist::Normal(1000, 200),
            Dist::Pareto(500, 3.0),
        ] {
            let count = 200_000;
            let sum: u64 = (0..count).map(|_| dist.draw(&mut stream)).sum();
            let mean = sum as f64 / f64::from(count);
            let wanted = dist.mean().unwrap();
            assert!((mean / wanted - 1.0).abs() < 0.01, "{dist:?}: {mean}");
        }
    }
}
