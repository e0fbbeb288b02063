//! `tandem-lab bench sim`: events per second and memory of the simulator, on one core
//! ([`tandem_bench::simulator`]).

use std::path::PathBuf;

use clap::Args;
use tandem_bench::simulator;
use tandem_bench::simulator::Case;
use tandem_demo::range;
use tandem_report::progress::Progress;
use tandem_sim::Scenario;

use tandem_command::console::print;
use tandem_command::output;
use tandem_experiment::vary;

/// `tandem-lab bench sim`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Scenarios to measure [default: bench-locks and bench-scale, which are built in]
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Runs of each, of which the median counts, 1 … 100
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,
    /// Measure each scenario with each of these values, such as vm.vm.count=4,16,64
    #[arg(long, value_name = "KEY=VALUE,VALUE…")]
    vary: Vec<String>,
    /// Write the figures as JSON; without PATH to standard output, in place of the table
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Measure the one scenario in this process and print its figures
    #[arg(long, hide = true)]
    here: bool,
}

impl BenchArgs {
    /// Returns every scenario with every combination of varied settings.
    fn cases(&self) -> anyhow::Result<Vec<Case>> {
        let names: Vec<String> = match self.scenarios.as_slice() {
            [] => Case::own().map(str::to_owned).collect(),
            names => names.to_vec(),
        };
        let combinations = vary::combinations(Vec::new(), &self.vary)?;
        let case = |name: &str, combination: &vary::Combination| Case {
            name: name.to_owned(),
            set: combination.name(),
            settings: combination.settings.clone(),
        };
        let cases =
            names.iter().flat_map(|name| combinations.iter().map(move |one| case(name, one)));
        Ok(cases.collect())
    }
}

/// Runs the measurement.
pub fn main(args: &BenchArgs) -> anyhow::Result<()> {
    let runs = range::whole("--runs", args.runs, 1, 100)?;
    let cases = args.cases()?;
    // Read all scenarios before the first measurement.
    let scenarios = cases.iter().map(Case::scenario);
    let scenarios: Vec<Scenario> = scenarios.collect::<Result<_, _>>()?;
    if let (true, [scenario]) = (args.here, scenarios.as_slice()) {
        return print(&serde_json::to_string(&simulator::measure(scenario, runs)?)?);
    }
    output::check_json(args.json.as_deref())?;
    let progress = Progress::begin(cases.len() as u64);
    let mut figures = Vec::new();
    for case in &cases {
        progress.say(&format!("{} {}, {runs} runs", case.name, case.set));
        figures.push(simulator::measure_apart(case, runs)?);
        progress.step();
    }
    drop(progress);
    if !output::is_stdout(args.json.as_deref()) {
        print(&simulator::table(&figures).to_string())?;
    }
    output::write_json(args.json.as_deref(), &figures)
}
