//! `tandem host export` through the real binary, with a real microVM.

use crate::export_support::{
    get, name, runs_here, start_exporter, start_vm, tandem, value, wait_for,
};

const STATE: &str = "tandem_vm_state_seconds_total{";

/// Returns the sum of the times in all states of a VM, and the end of the last interval.
fn times(page: &str, vm: &str) -> Option<(f64, f64)> {
    let of_vm = format!("vm=\"{vm}\"");
    let lines = page.lines();
    let times = lines.filter(|line| line.starts_with(STATE) && line.contains(&of_vm));
    let times: Vec<f64> = times.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    let last = value(page, "tandem_export_last_timestamp_seconds", "")?;
    (!times.is_empty()).then(|| (times.iter().sum(), last))
}

#[test]
#[ignore = "needs root and KVM"]
fn series_exist_for_the_life_of_a_vm() {
    if !runs_here("series_exist_for_the_life_of_a_vm") {
        return;
    }
    let name = name('x');
    let vm = start_vm(&name);
    let exporter = start_exporter(&["--interval", "0.25", &name, "--vcpus"]);
    let page = || get(exporter.address, "/metrics").ok();
    let first =
        wait_for("the VM has series", || page().filter(|page| times(page, &name).is_some()));
    assert!(first.ends_with("# EOF\n"), "{first}");
    let (sum, at) = times(&first, &name).unwrap();
    let (later, page_later) = wait_for("some seconds more", || {
        let page = page()?;
        let (sum, at_later) = times(&page, &name)?;
        (at_later - at > 2.0).then_some(((sum, at_later), page))
    });
    // The states cover all of the time.
    let per_vcpu = (later.0 - sum) / (later.1 - at) / 2.0;
    assert!((0.98..1.02).contains(&per_vcpu), "{per_vcpu} s/s\n{page_later}");
    let of_vm = format!("vm=\"{name}\"");
    let of = |beginning: &str, part: &str| value(&page_later, beginning, part);
    assert!(of(STATE, "state=\"run\"") > Some(0.0), "{page_later}");
    assert!(of(STATE, "state=\"poll\"").is_some(), "as root: {page_later}");
    assert_eq!(of(STATE, "state=\"costop\""), None, "not measured without BPF");
    assert_eq!(of("tandem_export_not_measured_ratios", "what=\"costop\""), Some(1.0));
    assert_eq!(of("tandem_vm_vcpus", &of_vm), Some(2.0));
    assert!(of("tandem_vcpu_state_seconds_total", "vcpu=\"1\"").is_some());
    assert!(of("tandem_vm_runs_total", &of_vm) > Some(0.0));
    assert!(of("tandem_vm_received_pcpus", &of_vm) > Some(0.0));
    assert!(of("tandem_host_use_seconds_total", "use=\"vcpus\"") > Some(0.0));
    assert_eq!(of("tandem_export_vms", ""), Some(1.0));
    drop(vm);
    wait_for("the VM is gone", || page().filter(|page| !page.contains(&of_vm)));
}

#[test]
fn scrapes_do_not_measure() {
    if !runs_here("scrapes_do_not_measure") {
        return;
    }
    let exporter = start_exporter(&["--interval", "3600"]);
    let page = || get(exporter.address, "/metrics").unwrap();
    let first = page();
    assert_eq!(value(&first, "tandem_export_intervals_total", ""), Some(0.0));
    for _ in 0..50 {
        assert_eq!(page(), first);
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    for (args, said) in [
        (["--interval", "0"], "50ms … 3600s"),
        (["--culprits", "101"], "0 … 100"),
        (["--listen", "9466"], "--listen"),
        (["--exclude", "a["], "--exclude"),
    ] {
        let args = [["host", "export"].as_slice(), &args].concat();
        let output = tandem(&args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{args:?}: {error}");
    }
}
