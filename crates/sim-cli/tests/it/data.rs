//! Output of `tandem-sim`: tables with a column for each parameter, as Parquet and CSV; ranges; pictures; the starter project;
//! the first example of docs/reference/scenarios.md outside of the repository.

use std::path::Path;

use crate::common::{Folder, said};
use parquet::file::reader::{FileReader, SerializedFileReader};

const SCENARIO: &str = r#"
duration = "12ms"
warmup = "4ms"
[machine]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
workload = "mutex"
"#;

impl Folder {
    /// Returns the cells of a Parquet file as in CSV.
    fn parquet(&self, name: &str) -> Vec<Vec<String>> {
        let file = std::fs::File::open(self.path(name)).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        let mut lines = Vec::new();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            if lines.is_empty() {
                lines.push(row.get_column_iter().map(|(name, _)| name.clone()).collect());
            }
            let value = |field: &parquet::record::Field| match field {
                parquet::record::Field::Str(text) => text.clone(),
                parquet::record::Field::Long(number) => number.to_string(),
                parquet::record::Field::ULong(number) => number.to_string(),
                parquet::record::Field::Double(number) => number.to_string(),
                other => panic!("{other:?}"),
            };
            lines.push(row.get_column_iter().map(|(_, field)| value(field)).collect());
        }
        lines
    }

    /// Returns the cells of a CSV file without quotes.
    fn csv(&self, name: &str) -> Vec<Vec<String>> {
        let text = self.text(name);
        assert!(!text.contains('"'), "{text}");
        let line = |line: &str| line.split(',').map(str::to_owned).collect();
        text.lines().map(line).collect()
    }
}

const VARIED: [&str; 8] = [
    "--policies",
    "stock,aple",
    "--vary",
    "vm.a.vcpus=1..3",
    "--vary",
    "host.halt_poll=0,50us",
    "--runs",
    "2",
];

#[test]
fn tables_have_a_column_per_parameter() {
    let folder = Folder::new(SCENARIO, &[]);
    for out in ["t.parquet", "t.csv"] {
        folder.succeeds(&[&["compare", "s.toml"], &VARIED[..], &["--table", out]].concat());
    }
    let rows = folder.parquet("t.parquet");
    assert_eq!(
        rows[0].join(" "),
        "scenario combination policies vm.a.vcpus host.halt_poll [ns] seed vm metric unit value"
    );
    // 12 combinations with two runs each.
    assert!(rows.len() > 24 * 30, "{} rows", rows.len());
    let last = rows.last().unwrap();
    assert_eq!(&last[1..5], ["aple vm.a.vcpus=3 host.halt_poll=50us", "aple", "3", "50000"]);
    assert_eq!(rows, folder.csv("t.csv"));
}

#[test]
fn sweep_output_format_follows_the_name() {
    let folder = Folder::new(SCENARIO, &[]);
    let sweep = |out: &str, more: &[&str]| {
        folder.succeeds(&[&["sweep", "s.toml"], &VARIED[..], &["--out", out], more].concat())
    };
    sweep("all.csv", &[]);
    sweep("1.parquet", &["--shard", "1/2"]);
    sweep("2.parquet", &["--shard", "2/2"]);
    folder.succeeds(&["sweep", "merge", "merged.csv", "1.parquet", "2.parquet"]);
    folder.succeeds(&["sweep", "merge", "merged.parquet", "1.parquet", "2.parquet"]);
    assert_eq!(folder.text("all.csv"), folder.text("merged.csv"));
    let rows = folder.parquet("merged.parquet");
    assert_eq!(rows, folder.csv("all.csv"));
    assert_eq!(rows[0][0], "cell");
    assert_eq!(rows[0][3..6], ["policies", "vm.a.vcpus", "host.halt_poll [ns]"]);
    let again = [&["sweep", "s.toml"], &VARIED[..], &["--out", "all.csv"]].concat();
    folder.fails(&again, &["all.csv", "--force"]);
    folder.succeeds(&[&again[..], &["--force"]].concat());
    folder.fails(
        &[&["sweep", "s.toml", "--out", "x.csv", "--shard", "1/2"], &VARIED[..]].concat(),
        &["x.csv", "1/2", "as Parquet"],
    );
    for (command, option) in [("sweep", "--out"), ("compare", "--table"), ("run", "--table")] {
        folder.fails(&[command, "s.toml", option, "x.xlsx"], &["x.xlsx", ".csv"]);
    }
    assert!(!folder.path("x.xlsx").exists() && !folder.path("x.csv").exists());
}

#[test]
fn ranges_expand_to_values() {
    let folder = Folder::new(SCENARIO, &[]);
    let said = folder.succeeds(&[
        "compare",
        "s.toml",
        "--vary",
        "vm.a.vcpus=log:1..8,6",
        "--runs",
        "1",
        "--metrics",
        "work_rate",
    ]);
    for vcpus in ["=1 ", "=2 ", "=4 ", "=8 ", "=6 "] {
        assert!(said.contains(&format!("vm.a.vcpus{vcpus}")), "{vcpus}: {said}");
    }
    folder.fails(
        &["compare", "s.toml", "--vary", "vm.a.vcpus=8..2"],
        &["--vary vm.a.vcpus=8..2 is not possible", "below the beginning"],
    );
}

#[test]
fn varied_numbers_are_drawn_as_lines() {
    let folder = Folder::new(SCENARIO, &[]);
    let vary = ["--vary", "host.scheduler=cfs,eevdf", "--vary", "vm.a.vcpus=1..4"];
    let more = ["--runs", "2", "--metrics", "work_rate", "--picture", "p.svg", "--html", "p.html"];
    folder.succeeds(&[&["compare", "s.toml"], &vary[..], &more].concat());
    let svg = folder.text("p.svg");
    // Two charts (all VMs, the only VM), each with a line per scheduler and a point per number.
    assert_eq!(svg.matches("<polyline").count(), 4, "{svg}");
    assert_eq!(svg.matches("<circle").count(), 16, "{svg}");
    assert!(svg.contains(">scheduler=cfs<") && svg.contains(">vm.a.vcpus<"), "{svg}");
    assert!(!svg.contains("NaN"), "{svg}");
    let page = folder.text("p.html");
    assert!(page.matches("<polyline").count() >= 4);
}

#[test]
fn impossible_pictures_are_rejected_early() {
    let folder = Folder::new(SCENARIO, &[]);
    let nowhere = |args: &[&str]| {
        let output = folder.command(args).env("PATH", "/nowhere").output();
        said(output.unwrap())
    };
    let long = ["--duration", "4000s"];
    for command in [
        &["run", "s.toml", "--picture", "x.png"][..],
        &["compare", "s.toml", "--vary", "vm.a.vcpus=1,2", "--picture", "x.png"],
    ] {
        let (success, said) = nowhere(&[command, &long].concat());
        assert!(!success && said.contains("rsvg-convert"), "{said}");
        assert!(said.contains("name x.svg"), "{said}");
    }
    folder.fails(
        &["run", "s.toml", "--duration", "4000s", "--picture", "x.jpg"],
        &["x.jpg", ".svg or .png"],
    );
    folder.fails(
        &["compare", "s.toml", "--duration", "4000s", "--picture", "x.svg"],
        &["nothing to draw", "three values"],
    );
    for name in ["x.png", "x.jpg", "x.svg"] {
        assert!(!folder.path(name).exists(), "{name}");
    }
}

#[test]
fn png_pictures_use_rsvg_convert() {
    let folder = Folder::new(SCENARIO, &[]);
    let args = ["run", "s.toml", "--picture", "x.png"];
    // A stand-in that stores its arguments and its input.
    let program = "#!/bin/sh\necho \"$@\" > called\ncat > given.svg\nprintf PNG > x.png\n";
    std::fs::create_dir(folder.path("bin")).unwrap();
    std::fs::write(folder.path("bin/rsvg-convert"), program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path("bin/rsvg-convert"), mode).unwrap();
    let path = format!("{}:/bin:/usr/bin", folder.path("bin").display());
    let output = folder.command(&args).env("PATH", path).output().unwrap();
    let (success, said) = said(output);
    assert!(success, "{said}");
    assert_eq!(folder.text("called"), "--format png --zoom 2 --output x.png\n");
    assert!(folder.text("given.svg").starts_with("<svg"));
    std::fs::remove_file(folder.path("x.png")).unwrap();
    // The real program, if it is installed.
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&folders).any(|path| path.join("rsvg-convert").is_file()) {
        return println!("skipped: rsvg-convert is not installed (Debian: librsvg2-bin)");
    }
    folder.succeeds(&args);
    let bytes = std::fs::read(folder.path("x.png")).unwrap();
    assert_eq!(bytes.get(..8), Some(&b"\x89PNG\r\n\x1a\n"[..]));
}

#[test]
fn picture_starts_after_warmup() {
    let folder = Folder::new(SCENARIO, &[]);
    folder.succeeds(&["run", "s.toml", "--picture", "after.svg"]);
    let same = ["--window", "4ms-24ms", "--picture", "said.svg"];
    folder.succeeds(&[&["run", "s.toml"], &same[..]].concat());
    let from_begin = ["--trace-from", "0ms", "--picture", "begin.svg"];
    folder.succeeds(&[&["run", "s.toml"], &from_begin[..]].concat());
    let title = "pCPUs and vCPUs from 4.000 ms to 24.000 ms";
    assert!(folder.text("after.svg").contains(title), "{}", folder.text("after.svg"));
    assert!(folder.text("said.svg").contains(title));
    assert!(!folder.text("begin.svg").contains(title));
}

#[test]
fn first_documented_example_runs_anywhere() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/scenarios.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let example = docs.split("```toml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let folder = Folder::new(SCENARIO, &[]);
    std::fs::write(folder.path("example.toml"), example).unwrap();
    let said = folder.succeeds(&["run", "example.toml"]);
    assert!(said.contains("locks") && said.contains("burn"), "{said}");
    // Built-in workloads are equal to those in files next to the scenario.
    let json = |folder: &Folder| folder.succeeds(&["run", "example.toml", "--json"]);
    let built_in = json(&folder);
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    std::fs::create_dir(folder.path("workloads")).unwrap();
    for name in ["fine-locks.toml", "burn.toml"] {
        let to = folder.path("workloads").join(name);
        std::fs::copy(workloads.join(name), to).unwrap();
    }
    assert_eq!(json(&folder), built_in);
    // Files next to the scenario take precedence.
    let other = folder.text("workloads/fine-locks.toml").replace("8us", "9us");
    std::fs::write(folder.path("workloads/fine-locks.toml"), other).unwrap();
    assert_ne!(json(&folder), built_in);
}

#[test]
fn starter_project_runs_its_readme_commands() {
    let folder = Folder::new(SCENARIO, &[]);
    let said = folder.succeeds(&["new", "my-host"]);
    assert!(said.contains("Now: tandem-sim run my-host/scenario.toml"), "{said}");
    let readme = folder.text("my-host/README.md");
    let commands: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("tandem-sim ")).collect();
    assert_eq!(commands.len(), 5, "{readme}");
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        // The same command with a shorter duration.
        let said = folder.succeeds(&[&words[..], &["--duration", "130ms"]].concat());
        assert!(!said.is_empty(), "{command}");
    }
    for made in ["vcpus.svg", "vcpus.csv", "fair.html", "moments.svg"] {
        assert!(folder.path("my-host").join(made).exists(), "{made}");
    }
    folder.fails(&["new", "my-host"], &["my-host is there already"]);
    folder.fails(&["new", "a b"], &["a b", "letters"]);
}
