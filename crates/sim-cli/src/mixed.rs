//! `tandem-sim mixed`: overcommitted hosts with VMs of many sizes and programs under several policies
//! ([`tandem_experiment::mixed`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use tandem_experiment::figures::{self, Format, Row};
use tandem_experiment::metrics::Metric;
use tandem_experiment::mixed::mix::Mix;
use tandem_experiment::mixed::{Mixed, Plan, Request, VmFigures};
use tandem_experiment::parameters::{Column, Kind, Value};
use tandem_experiment::{policies, range};
use tandem_model::topology::LayoutError;
use tandem_model::{Layout, Nanos};
use tandem_sim::scenario::load::{Setting, time};
use tandem_sim_report::mixed;

use crate::input;
use crate::progress::Bar;
use tandem_command::console::{print, wrong_argument};
use tandem_command::output;

/// `tandem-sim mixed`
#[derive(Debug, Args)]
pub struct MixedArgs {
    /// Sizes and programs of the VMs, a TOML file [default: a built-in mix, see --print-mix]
    #[arg(long, value_name = "FILE")]
    mix: Option<PathBuf>,
    /// Print the built-in mix as a template, and exit
    #[arg(long)]
    print_mix: bool,
    /// pCPUs of the hosts, 1 … 1024
    #[arg(long, value_name = "N,…", default_value = "16,64", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pcpus: Vec<u32>,
    /// Topology of the hosts, which sets --pcpus: epyc-7601, epyc-7763, xeon-8375c, xeon-e5-2690v4, or sockets, nodes per socket, caches per node, cores per cache and threads per core, such as 2:1:1:8:2
    #[arg(long, value_name = "NAME", conflicts_with = "pcpus", value_parser = topology)]
    topology: Option<Layout>,
    /// vCPUs per pCPU, above 0 and at most 16
    #[arg(long, value_name = "N,…", default_value = "2", value_delimiter = ',', value_parser = overcommit)]
    overcommit: Vec<f64>,
    /// Seeds, each of which draws a host, such as 1..8 or 3,5
    #[arg(long, value_name = "N,…", default_value = "1..4")]
    seeds: String,
    /// Policies to compare, such as stock,fair,fair+turns; an unknown one lists all. The first is the baseline of latencies
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "stock,fair+turns+apart"
    )]
    policies: Vec<String>,
    /// Replace a value of every scenario, such as host.scheduler=cfs, vm.*.spin_locks=queued
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Simulated time of each run, warm-up included
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = time)]
    duration: Nanos,
    /// Time before the measurement starts
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = time)]
    warmup: Nanos,
    /// Number of worst VMs to show for each policy
    #[arg(long, value_name = "N", default_value_t = 5)]
    worst: usize,
    /// Worker threads [default: one for each CPU]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Write all figures as JSON; without PATH to standard output, in place of the tables
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the figures of each VM as a table, a row for each: Parquet, or CSV if PATH ends in .csv
    #[arg(long, visible_alias = "parquet", value_name = "PATH")]
    table: Option<PathBuf>,
    /// Write a picture of the distribution of deserved work, SVG or PNG by its name
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Write the scenario of each host into this folder, for tandem-sim run
    #[arg(long, value_name = "DIR")]
    scenarios: Option<PathBuf>,
}

fn topology(text: &str) -> Result<Layout, String> {
    let layout: Layout = text.parse().map_err(|error: LayoutError| error.to_string())?;
    if layout.threads_per_core > 2 {
        return Err("a core has 1 or 2 threads, the last of the numbers".to_owned());
    }
    Ok(layout)
}

fn overcommit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 16.0 => Ok(number),
        _ => Err("a number above 0 and at most 16, such as 2 or 1.5".to_owned()),
    }
}

/// Runs the experiment.
pub fn main(args: &MixedArgs) -> anyhow::Result<()> {
    if args.print_mix {
        return print(Mix::DEFAULT.trim_end());
    }
    if args.warmup >= args.duration {
        return Err(wrong_argument(anyhow!(
            "--warmup {} is not possible: it must be shorter than --duration {}",
            args.warmup,
            args.duration
        )));
    }
    let seeds = seeds(&args.seeds).map_err(wrong_argument)?;
    let workers = input::workers(1, args.workers)?;
    output::check_json(args.json.as_deref())?;
    if let Some(path) = &args.table {
        Format::of(path)?;
        output::check(path)?;
    }
    let drawing = output::check_picture(args.picture.as_deref())?;
    let settings = args.settings.iter().map(|text| Setting::parse(text));
    let plan = Plan::new(Request {
        mix: Mix::read(args.mix.as_deref())?,
        pcpus: match args.topology.and_then(Layout::pcpus) {
            Some(pcpus) => vec![pcpus],
            None => args.pcpus.clone(),
        },
        topology: args.topology,
        overcommit: args.overcommit.clone(),
        seeds,
        policies: policies::combinations(&args.policies)?,
        settings: settings.collect::<Result<Vec<Setting>, _>>()?,
        duration: args.duration,
        warmup: args.warmup,
    })?;
    if let Some(folder) = &args.scenarios {
        let failed = || format!("cannot write to {}", folder.display());
        std::fs::create_dir_all(folder).with_context(failed)?;
        for (name, text) in plan.sources() {
            std::fs::write(folder.join(name), text).with_context(failed)?;
        }
    }
    let figures = plan.run(workers, &Bar::new())?;
    if !output::is_stdout(args.json.as_deref()) {
        print(&mixed::text(&figures, args.worst))?;
    }
    output::write_json(args.json.as_deref(), &figures)?;
    if let Some(path) = &args.table {
        write_table(path, &figures)?;
    }
    if let Some(drawing) = &drawing {
        note!("picture: {}", drawing.write(&mixed::picture(&figures))?.display());
    }
    Ok(())
}

/// Reads `1..8` or `3,5`.
fn seeds(text: &str) -> anyhow::Result<Vec<u64>> {
    let wrong = || anyhow!("--seeds {text} is not possible: write numbers, such as 1..8 or 3,5");
    let mut seeds = Vec::new();
    for part in text.split(',') {
        for seed in range::expand(part).map_err(|_| wrong())? {
            seeds.push(seed.parse::<u64>().map_err(|_| wrong())?);
        }
    }
    let mut sorted = seeds.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() == seeds.len() {
        Ok(seeds)
    } else {
        Err(anyhow!("--seeds {text} has a number twice"))
    }
}

/// Writes a row for each figure of each VM.
fn write_table(path: &Path, mixed: &Mixed) -> anyhow::Result<()> {
    let column = |name: &str, kind| Column { name: name.to_owned(), kind };
    let columns = [
        column("pcpus", Kind::Integer),
        column("overcommit", Kind::Real),
        column("class", Kind::Text),
        column("program", Kind::Text),
        column("vcpus", Kind::Integer),
    ];
    let mut rows: Vec<(&str, u64, Vec<Value>, Vec<Metric>)> = Vec::new();
    for hosts in &mixed.hosts {
        for policy in &hosts.policies {
            for vm in &policy.vms {
                let parameters = vec![
                    Value::Integer(i64::from(hosts.pcpus)),
                    Value::Real(hosts.overcommit),
                    Value::Text(vm.class.clone()),
                    Value::Text(vm.program.clone()),
                    Value::Integer(i64::from(vm.vcpus)),
                ];
                rows.push((&policy.policy, vm.seed, parameters, metrics(vm)));
            }
        }
    }
    let rows = rows.iter().flat_map(|(policy, seed, parameters, metrics)| {
        metrics.iter().map(move |metric| Row {
            scenario: "mixed",
            combination: policy,
            parameters,
            seed: *seed,
            metric,
        })
    });
    figures::write(path, &columns, rows)?;
    Ok(())
}

fn metrics(vm: &VmFigures) -> Vec<Metric> {
    let of_vm = |metric, unit, value| Metric { vm: vm.vm.clone(), metric, unit, value };
    let mut metrics = vec![
        of_vm("alone", "pCPUs", vm.alone),
        of_vm("fair_share", "pCPUs", vm.fair_share),
        of_vm("received", "pCPUs", vm.received),
    ];
    metrics.extend(vm.deserved.map(|value| of_vm("deserved", "1", value)));
    metrics.extend(vm.request_p99.map(|value| of_vm("request_p99", "ns", value)));
    metrics.extend(vm.time.iter().map(|(&name, &value)| of_vm(name, "pCPUs", value)));
    metrics
}
