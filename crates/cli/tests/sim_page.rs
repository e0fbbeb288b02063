//! Pages of `tandem sim` in a real browser: charts are there and have a size, nothing is fetched,
//! nothing complains, nothing sticks out.
//!
//! Pages have no script, so the test opens a copy with one added that measures what was laid out and
//! writes it into the page, which headless Chromium prints. Where the test may, the browser runs
//! without a network at all; it never resolves a name. Skipped where there is no Chromium
//! (`scripts/setup` installs it on Debian).

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Measures the page once it is laid out.
const PROBE: &str = "<script>
addEventListener('load', () => {
  const box = e => e.getBoundingClientRect();
  const seen = e => box(e).width > 0.2 && box(e).height > 0.2;
  const all = s => [...document.querySelectorAll(s)];
  const inside = e => {
    const svg = box(e.closest('svg.chart')), b = box(e);
    return b.left > svg.left - 6 && b.right < svg.right + 6 && b.top > svg.top - 6 && b.bottom < svg.bottom + 6;
  };
  const charts = all('svg.chart');
  const probe = {
    charts: charts.length,
    charts_seen: charts.filter(s => box(s).width > 100 && box(s).height > 40).length,
    bars: all('svg rect.bar').length,
    bars_seen: all('svg rect.bar').filter(seen).length,
    cells: all('svg rect.bar[fill-opacity] title').length,
    lines: all('svg polyline').filter(l => l.getTotalLength() > 10).length,
    whiskers: all('svg .whisker').length,
    outside: all('svg text').filter(t => !inside(t)).map(t => t.textContent),
    texts_without_colour: all('svg text').filter(t => getComputedStyle(t).fill === 'none').length,
    fetched: performance.getEntriesByType('resource').map(r => r.name),
    wide: document.documentElement.scrollWidth - innerWidth,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  const out = document.createElement('pre');
  out.id = 'probe';
  out.textContent = JSON.stringify(probe);
  document.body.append(out);
});
</script></body>";

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tandem-page-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn scenario(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    folder.join(name).to_str().unwrap().to_owned()
}

/// Makes a page with `tandem sim`.
fn page(name: &str, args: &[&str]) -> PathBuf {
    let path = folder().join(name);
    let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .arg("sim")
        .args(args)
        .arg("--html")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert!(said.contains("page: "), "{said}");
    path
}

/// A browser, or why there is none.
fn browser() -> Result<&'static str, String> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    BROWSERS
        .iter()
        .copied()
        .find(|name| runs(name))
        .ok_or_else(|| format!("none of {} is here", BROWSERS.join(", ")))
}

/// What the browser made of a page.
struct Opened {
    probe: Value,
    complaints: Vec<String>,
}

impl Opened {
    fn number(&self, name: &str) -> u64 {
        let value = self.probe[name].as_u64();
        value.unwrap_or_else(|| panic!("{name} in {}", self.probe))
    }
}

/// Opens a page with the probe in it.
fn open(browser: &str, path: &Path, width: u32, dark: bool) -> Opened {
    let text = std::fs::read_to_string(path).unwrap();
    let probed = path.with_extension(format!("{width}-{dark}.html"));
    std::fs::write(&probed, text.replace("</body>", PROBE)).unwrap();
    let without_network = Command::new("unshare").args(["-n", "true"]).output();
    let mut command = match without_network.is_ok_and(|output| output.status.success()) {
        true => {
            let mut command = Command::new("unshare");
            command.args(["-n", browser]);
            command
        }
        false => Command::new(browser),
    };
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let output = command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--enable-logging=stderr",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ])
        .arg(format!("--window-size={width},900"))
        .arg(format!(
            "--user-data-dir={}",
            probed.with_extension("profile").display()
        ))
        .arg(format!("file://{}", probed.display()))
        .output()
        .unwrap();
    let (dom, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let after = dom.split("id=\"probe\">").nth(1);
    let probe = after.and_then(|after| after.split("</pre>").next());
    let probe = probe.unwrap_or_else(|| panic!("no probe in the page\n{said}"));
    let escapes = [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    let probe = escapes
        .iter()
        .fold(probe.to_owned(), |text, (from, to)| text.replace(from, to));
    Opened {
        probe: serde_json::from_str(&probe).unwrap(),
        complaints: said
            .lines()
            // The browser complains about its own pages, too.
            .filter(|line| line.contains(":CONSOLE") && !line.contains("source: chrome://"))
            .map(str::to_owned)
            .collect(),
    }
}

/// What holds for every page at every width, light and dark.
fn check(browser: &str, path: &Path) -> Opened {
    let text = std::fs::read_to_string(path).unwrap();
    for outside in [
        "http:", "https:", "src=", "href=", "@import", "url(", "<script",
    ] {
        assert!(!text.contains(outside), "{outside} in {}", path.display());
    }
    assert!(!text.contains("NaN"));
    let dark = open(browser, path, 1200, true);
    let phone = open(browser, path, 500, false);
    let desk = open(browser, path, 1200, false);
    assert_eq!(dark.probe["dark"], true);
    assert_ne!(dark.probe["paper"], desk.probe["paper"]);
    for opened in [&dark, &phone, &desk] {
        let probe = &opened.probe;
        assert_eq!(opened.complaints, Vec::<String>::new(), "{probe}");
        assert_eq!(probe["fetched"], serde_json::json!([]));
        assert!(opened.number("charts") > 0, "{probe}");
        assert_eq!(probe["charts"], probe["charts_seen"], "{probe}");
        assert!(
            probe["wide"].as_i64() <= Some(0),
            "wider than the window: {probe}"
        );
        assert_eq!(
            probe["outside"],
            serde_json::json!([]),
            "text beyond its chart"
        );
        assert_eq!(probe["texts_without_colour"], 0);
    }
    desk
}

#[test]
fn a_comparison_shows_its_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("ticket-ple-per-vm.toml");
    let args = ["compare", &scenario, "--policies", "stock,aple,hvs,apples"];
    let rest = [
        "--runs",
        "2",
        "--duration",
        "300ms",
        "--metrics",
        "work_rate,steal",
    ];
    let path = page("compare.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    // For each of two metrics one chart of both VMs and a panel for each, and for work, which adds up, one
    // for all; where the time of both went; two thresholds. And for each policy who waited for pCPUs, and perhaps for siblings, by VM and,
    // where there are few, by vCPU.
    let charts = 2 * (1 + 2) + 1 + 2 + 2;
    let waits = opened.number("charts") - charts;
    assert!((4..=4 * 4).contains(&waits), "{}", opened.probe);
    assert!(
        opened.number("bars_seen") >= 2 * 2 * 2 * 4,
        "{}",
        opened.probe
    );
    assert!(
        opened.number("whiskers") >= 2 * 2 * 2 * 4,
        "{}",
        opened.probe
    );
    assert!(opened.number("cells") > 4, "{}", opened.probe);
    assert!(opened.number("lines") >= 2, "{}", opened.probe);
}

#[test]
fn a_run_shows_its_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("shootdown-ipi.toml");
    let rest = [
        "--duration",
        "300ms",
        "--set",
        "host.pause_loop.policy=aple",
    ];
    let path = page("run.html", &[&["run", &scenario][..], &rest].concat());
    let opened = check(browser, &path);
    assert!(opened.number("charts") >= 3 + 1 + 2, "{}", opened.probe);
    assert!(opened.number("bars_seen") > 10, "{}", opened.probe);
    assert!(opened.number("lines") >= 1, "{}", opened.probe);
}

#[test]
fn many_combinations_with_long_names_fit() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("lock-holder-preemption.toml");
    let args = [
        "compare",
        &scenario,
        "--set",
        "vm.burn.count=7",
        "--runs",
        "1",
    ];
    let rest = [
        "--duration",
        "60ms",
        "--vary",
        "host.pause_loop.policy=stock,aple,off",
        "--vary",
        "host.pause_loop.candidate=stock,hvs,none",
        "--vary",
        "host.scheduler=cfs,eevdf",
    ];
    let path = page("many.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    assert!(opened.number("charts") >= 4 * 8, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("candidate=hvs scheduler=eevdf</text>") && text.contains("--vary"));
}

#[test]
fn a_number_that_is_varied_has_lines() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let scenario = scenario("lock-holder-preemption.toml");
    let args = ["compare", &scenario, "--runs", "2", "--duration", "60ms"];
    let rest = [
        "--vary",
        "vm.burn.vcpus=log:1..8",
        "--vary",
        "host.pause_loop.candidate=stock,hvs",
        "--vary",
        "host.pause_loop.policy=stock,aple",
        "--metrics",
        "received,steal",
    ];
    let path = page("number.html", &[&args[..], &rest].concat());
    let opened = check(browser, &path);
    // For each of two metrics and two VMs four lines.
    assert!(opened.number("lines") >= 2 * 2 * 4, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("<circle").count(), 2 * 2 * 4 * 4);
}

#[test]
fn published_claims_show_their_charts() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    // One of figures and bounds, one of a table.
    let claims = "scal.f4_7,gleaner.t2.A";
    let path = page(
        "claims.html",
        &["reproduce", "--claims", claims, "--runs", "2"],
    );
    let opened = check(browser, &path);
    let text = std::fs::read_to_string(&path).unwrap();
    for claim in claims.split(',') {
        assert!(text.contains(claim), "{claim} is not on the page");
    }
    // A chart for each claim that is covered, with a dot or whiskers for each figure.
    assert_eq!(opened.number("charts"), 2, "{}", opened.probe);
    assert!(opened.number("whiskers") > 0, "{}", opened.probe);
}

#[test]
fn a_survey_shows_a_chart_for_each_overcommit() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/data/survey.json");
    let path = page(
        "survey.html",
        &["survey", "--from", figures.to_str().unwrap()],
    );
    let entries = std::fs::read_to_string(&figures).unwrap();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&entries).unwrap();
    let policies = entries.iter().filter_map(|entry| entry["policy"].as_str());
    let policies: std::collections::BTreeSet<&str> = policies.collect();
    assert!(policies.len() > 20, "{policies:?}");
    let opened = check(browser, &path);
    assert_eq!(opened.number("charts"), 3, "{}", opened.probe);
    let bars = 3 * policies.len() as u64;
    assert_eq!(opened.number("bars_seen"), bars, "{}", opened.probe);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("Worst victim") && text.contains("splash-volrend"));
}

/// The check itself: it has to see what it is there for.
#[test]
fn the_browser_sees_what_is_wrong_with_a_page() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let path = folder().join("wrong.html");
    let wrong = "<html><body style='width:3000px'><img src='http://example.invalid/x.png'>
        <svg class='chart' viewBox='0 0 10 10' width='200' height='200'><text x='900'>far</text></svg>
        <script>nobody()</script></body></html>";
    std::fs::write(&path, wrong).unwrap();
    let opened = open(browser, &path, 1200, false);
    assert!(!opened.complaints.is_empty());
    assert_eq!(opened.probe["fetched"][0], "http://example.invalid/x.png");
    assert!(opened.probe["wide"].as_i64() > Some(1000));
    assert_eq!(opened.probe["outside"][0], "far");
}

#[test]
fn a_picture_is_an_svg_file_with_a_bar_for_each_combination() {
    let path = folder().join("picture.svg");
    let picture = path.to_str().unwrap();
    let scenario = scenario("lock-holder-preemption.toml");
    let args = ["sim", "compare", &scenario, "--policies", "stock,aple,hvs"];
    let rest = [
        "--runs",
        "2",
        "--duration",
        "60ms",
        "--metrics",
        "work_rate",
        "--picture",
        picture,
    ];
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(args)
            .output()
            .unwrap()
    };
    let output = run(&[&args[..], &rest].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""),
        "{svg}"
    );
    assert!(!svg.contains("var(") && !svg.contains("NaN"), "{svg}");
    // Two VMs; the legend has one more of each colour.
    assert_eq!(svg.matches("class=\"bar s1\"").count(), 3, "{svg}");
    // One combination has nothing to be relative to.
    let output = run(&[&args[..3], &rest].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("nothing to draw"),
        "{said}"
    );
}
