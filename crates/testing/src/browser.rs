//! Checks HTML pages in a real browser: layout, requests and console messages.
//!
//! Pages have no script, so a probe is added to a copy.
//! The probe measures the layout and writes the result into the page, which headless Chromium prints.
//! If possible, the browser runs without a network; it never resolves a name.
//! `scripts/setup` installs Chromium on Debian.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Script that measures the page after its layout.
const PROBE: &str = "<script>
addEventListener('load', () => {
  const box = e => e.getBoundingClientRect();
  const seen = e => box(e).width > 0.2 && box(e).height > 0.2;
  const all = s => [...document.querySelectorAll(s)];
  const inside = e => {
    const svg = box(e.closest('svg.chart')), b = box(e);
    return b.left > svg.left - 6 && b.right < svg.right + 6 && b.top > svg.top - 6 && b.bottom < svg.bottom + 6;
  };
  const scrolls = e => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) ? e.scrollWidth > e.clientWidth : false)
    || (e?.parentElement ? scrolls(e.parentElement) : false);
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
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    cut: all('body *').filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 2 && !e.closest('svg')
      && ['hidden', 'clip'].includes(getComputedStyle(e).overflowX)).map(e => e.outerHTML.slice(0, 80)),
    beyond: all('body *').filter(e => !e.closest('svg') && seen(e) && !scrolls(e) && getComputedStyle(e).position === 'static'
      && (box(e).left < -1 || box(e).right > document.documentElement.clientWidth + 1)).map(e => e.outerHTML.slice(0, 200)),
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  const out = document.createElement('pre');
  out.id = 'probe';
  out.textContent = JSON.stringify(probe);
  document.body.append(out);
});
</script></body>";

/// Returns an installed browser, or the reason why there is none.
pub fn browser() -> Result<&'static str, String> {
    let runs = |name: &&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    BROWSERS
        .iter()
        .copied()
        .find(|name| runs(name))
        .ok_or_else(|| format!("none of {} is installed", BROWSERS.join(", ")))
}

/// The result of opening a page.
pub struct Opened {
    /// The values of the probe.
    pub probe: Value,
    /// Messages on the console.
    pub complaints: Vec<String>,
}

impl Opened {
    /// Returns a number of the probe.
    pub fn number(&self, name: &str) -> u64 {
        let value = self.probe[name].as_u64();
        value.unwrap_or_else(|| panic!("{name} in {}", self.probe))
    }
}

/// Opens a page with the probe added.
pub fn open(browser: &str, path: &Path, width: u32, dark: bool) -> Opened {
    let text = std::fs::read_to_string(path).unwrap();
    let probed = path.with_extension(format!("{width}-{dark}.html"));
    std::fs::write(&probed, text.replace("</body>", PROBE)).unwrap();
    let without_network = Command::new("unshare").args(["-n", "true"]).output();
    let mut command = if without_network.is_ok_and(|output| output.status.success()) {
        let mut command = Command::new("unshare");
        command.args(["-n", browser]);
        command
    } else {
        Command::new(browser)
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
        .arg(format!("--user-data-dir={}", probed.with_extension("profile").display()))
        .arg(format!("file://{}", probed.display()))
        .output()
        .unwrap();
    let (dom, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let after = dom.split("id=\"probe\">").nth(1);
    let probe = after.and_then(|after| after.split("</pre>").next());
    let probe = probe.unwrap_or_else(|| panic!("no probe in the page\n{said}"));
    let escapes = [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    let probe = escapes.iter().fold(probe.to_owned(), |text, (from, to)| text.replace(from, to));
    Opened {
        probe: serde_json::from_str(&probe).unwrap(),
        complaints: said
            .lines()
            // The browser also logs messages about its own pages.
            .filter(|line| line.contains(":CONSOLE") && !line.contains("source: chrome://"))
            .map(str::to_owned)
            .collect(),
    }
}

/// Widths of windows in pixels: a phone, a small and a usual window.
const WIDTHS: [u32; 3] = [500, 800, 1280];

/// Checks a page at every width, in light and dark mode; returns the page in a usual window.
pub fn check(browser: &str, path: &Path) -> Opened {
    let text = std::fs::read_to_string(path).unwrap();
    for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script"] {
        assert!(!text.contains(outside), "{outside} in {}", path.display());
    }
    assert!(!text.contains("NaN"));
    let dark = open(browser, path, 1280, true);
    let mut light = WIDTHS.map(|width| open(browser, path, width, false));
    assert_eq!(dark.probe["dark"], true);
    assert_ne!(dark.probe["paper"], light[0].probe["paper"]);
    for opened in light.iter().chain([&dark]) {
        let probe = &opened.probe;
        assert_eq!(opened.complaints, Vec::<String>::new(), "{probe}");
        let nothing = serde_json::json!([]);
        assert_eq!(probe["fetched"], nothing);
        assert_eq!(probe["charts"], probe["charts_seen"], "{probe}");
        assert!(probe["wide"].as_i64() <= Some(0), "wider than the window: {probe}");
        assert_eq!(probe["cut"], nothing, "content is cut off: {probe}");
        assert_eq!(probe["beyond"], nothing, "content is beyond the window: {probe}");
        assert_eq!(probe["outside"], nothing, "text beyond its chart");
        assert_eq!(probe["texts_without_colour"], 0);
    }
    assert!(light[0].number("charts") > 0, "{}", light[0].probe);
    std::mem::replace(&mut light[2], dark)
}

/// Checks a page if a browser is installed; otherwise prints that the check is skipped.
pub fn check_if_there(path: &Path) {
    match browser() {
        Ok(browser) => drop(check(browser, path)),
        Err(reason) => println!("skipped: {}: {reason}", path.display()),
    }
}
