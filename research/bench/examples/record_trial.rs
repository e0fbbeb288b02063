//! Compares recorded programs in the simulator with the programs ([`tandem_bench::record_trial`]); prints a table, and writes JSON if a file is named.
//!
//! ```text
//! sudo cargo run --release -p tandem-bench --example record_trial -- [ROUNDS [SECONDS [FILE.json [PROGRAM...]]]]
//! ```
//!
//! The programs come from Debian packages that `scripts/setup bench` installs.
//! It needs an otherwise idle machine with two CPUs.
//! It records each program once, then runs it ROUNDS times in four settings.
//! A run takes SECONDS in the recorded setting, and up to four times as long in the others: the default of 3 rounds of 4 s takes about 12 minutes.
//! If TANDEM_KEEP names a folder, the scenarios are kept there.

use std::path::Path;
use std::{env, thread};

use tandem_bench::record_trial;
use tandem_bench::record_trial::Settings;
use tandem_demo::state_dir;
use tandem_linux::affinity::set_affinity;
use tandem_linux::interrupt::Interrupt;
use tandem_linux::thread::Tid;
use tandem_model::{PcpuId, PcpuSet};
use tandem_report::json;
use tandem_report::progress::Progress;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "hog") {
        return hog(&arguments[1..]);
    }
    let number = |at: usize, usual: u32| arguments.get(at).map_or(Ok(usual), |text| text.parse());
    let interrupt = Interrupt::watch()?;
    let settings = Settings {
        rounds: number(0, 3)?,
        seconds: number(1, 4)?,
        programs: arguments.iter().skip(3).cloned().collect(),
        hog: env::current_exe()?,
        state_dir: state_dir::default_for(rustix::process::geteuid().as_raw()),
        keep: env::var_os("TANDEM_KEEP").map(Into::into),
    };
    let progress = Progress::begin(record_trial::PROGRAMS.len() as u64);
    let trial = record_trial::measure(&settings, &progress, &interrupt)?;
    drop(progress);
    println!("{}", record_trial::text(&trial));
    if let Some(file) = arguments.get(2) {
        json::write(Path::new(file), &trial)?;
    }
    Ok(())
}

/// Computes on each of these CPUs forever.
fn hog(cpus: &[String]) -> Result<(), AnyError> {
    let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.parse()).collect::<Result<_, _>>()?;
    let threads = cpus.into_iter().map(|cpu| {
        thread::spawn(move || {
            if let Err(error) = set_affinity(Tid(0), &PcpuSet::from_iter([PcpuId(cpu)])) {
                eprintln!("hog: {error}");
                return;
            }
            loop {
                std::hint::black_box(cpu);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}
