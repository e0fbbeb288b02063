//! A reading of the BPF programs, together with kernel statistics of the same threads.

use std::thread::sleep;
use std::time::{Duration, Instant};

use tandem_linux::ProcFs;
use tandem_linux::sampler::{Sampler, VcpuSample};
use tandem_linux::thread::ThreadRef;
use tandem_model::Nanos;
use tandem_observe::bpf::{Bpf, BpfReading};

fn sample(threads: &[ThreadRef]) -> Vec<VcpuSample> {
    let mut sampler = Sampler::new(ProcFs::host());
    let samples = threads.iter().map(|thread| sampler.sample(thread));
    samples.map(|sample| sample.expect("it lives")).collect()
}

/// A reading, with kernel statistics before and after its begin and its end.
pub struct Span {
    pub reading: BpfReading,
    /// Minimum and maximum duration, since a reading takes time, too.
    pub lasted: [Duration; 2],
    pub accounts: [Vec<VcpuSample>; 4],
}

impl Span {
    /// Measures for this time.
    pub fn measure(bpf: &mut Bpf, threads: &[ThreadRef], time: Duration) -> Span {
        let first = sample(threads);
        let begin = Instant::now();
        bpf.read().expect("a reading");
        let began = Instant::now();
        let second = sample(threads);
        sleep(time);
        let third = sample(threads);
        let least = began.elapsed();
        let reading = bpf.read().expect("a reading");
        let most = begin.elapsed();
        let fourth = sample(threads);
        Span { lasted: [least, most], reading, accounts: [first, second, third, fourth] }
    }

    /// Whether a figure of a thread matches the increase of its statistics, within a part and `slack`.
    pub fn agrees(
        &self,
        figure: Nanos,
        thread: usize,
        account: fn(&VcpuSample) -> Nanos,
        part: f64,
        slack: Nanos,
    ) -> bool {
        let [first, second, third, fourth] = &self.accounts;
        let least = account(&third[thread]).saturating_sub(account(&second[thread]));
        let most = account(&fourth[thread]) - account(&first[thread]);
        let slack = (most.0 as f64 * part).max(slack.0 as f64);
        let figure = figure.0 as f64;
        figure >= least.0 as f64 - slack && figure <= most.0 as f64 + slack
    }
}
