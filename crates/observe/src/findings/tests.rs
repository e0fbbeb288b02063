//! Checks each cause in an artificial interval that has it, and in one just below its threshold.

mod costs;
mod once;
mod room;
mod weight;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tandem_linux::cgroup::{CgroupPath, Quota, Version};
use tandem_model::states::edges::{Amount, EdgesBuilder, Evidence, Party};
use tandem_model::states::interval::{
    HostTotals, Missing, ProcessTime, SourceName, ThreadTime, VcpuInterval,
};
use tandem_model::{PcpuSet, VcpuId};

use tandem_model::VcpuTimes;
use tandem_model::states::interval::VmInterval;

use super::*;

const SECOND: Nanos = Nanos::from_millis(1000);

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn set(text: &str) -> PcpuSet {
    text.parse().unwrap()
}

/// A vCPU's second: RUN, RDY, LIM and POLL in ms, and its affinity.
#[derive(Clone, Copy)]
struct Second {
    run: u64,
    ready: u64,
    limited: u64,
    poll: u64,
    on: &'static str,
}

fn vcpu(run: u64, ready: u64, on: &'static str) -> Second {
    Second { run, ready, limited: 0, poll: 0, on }
}

/// A host of two pCPUs over a second.
struct World {
    interval: Interval,
    vms: BTreeMap<VmId, KnownVm>,
    host: KnownHost,
    weights: BTreeMap<CgroupPath, u32>,
    edges: EdgesBuilder,
}

impl World {
    fn new() -> World {
        World {
            interval: Interval {
                source: SourceName::Plain,
                start: Nanos::ZERO,
                length: SECOND,
                vms: Vec::new(),
                edges: EdgesBuilder::new().all(),
                host: HostTotals { pcpus: 2, idle: Some(Nanos::ZERO), ..HostTotals::default() },
                missing: Vec::new(),
                programs: None,
            },
            vms: BTreeMap::new(),
            host: KnownHost {
                version: Version::V1,
                mount: PathBuf::from("/cg"),
                online: set("0-1"),
                isolated: PcpuSet::default(),
                caches: Vec::new(),
                cores: Vec::new(),
                kernel: Some((6, 18)),
                has_autogroup: false,
            },
            weights: BTreeMap::new(),
            edges: EdgesBuilder::new(),
        }
    }

    /// Adds a VM that received its fair share.
    fn vm(mut self, id: u64, vcpus: &[Second]) -> World {
        let measured = (0u32..).zip(vcpus).map(|(n, of)| VcpuInterval {
            vcpu: VcpuId(n),
            times: VcpuTimes::from_parts(
                SECOND,
                [
                    (State::Run, ms(of.run)),
                    (State::Poll, ms(of.poll)),
                    (State::Ready, ms(of.ready)),
                    (State::Limited, ms(of.limited)),
                ],
            )
            .unwrap(),
            ran: ms(of.run + of.poll),
            waited: ms(of.ready + of.limited),
            runs: 100,
            wakeups: None,
            runnable: false,
            allowed: set(of.on),
        });
        let measured: Vec<VcpuInterval> = measured.collect();
        let received: Nanos = measured.iter().map(|vcpu| vcpu.ran).sum();
        self.interval.host.vcpus += received;
        let known = KnownVm {
            name: format!("vm{id}"),
            pid: id as u32,
            tids: (0u32..).zip(vcpus).map(|(n, _)| (VcpuId(n), 100 + n)).collect(),
            weight: 3.0,
            due: received,
            received,
            cgroup: Some(CgroupPath(format!("/vms/vm{id}"))),
            ..KnownVm::default()
        };
        self.vms.insert(VmId(id), known);
        self.interval.vms.push(VmInterval { vm: VmId(id), vcpus: measured, threads: Vec::new() });
        self
    }

    fn known(mut self, id: u64, change: impl FnOnce(&mut KnownVm)) -> World {
        change(self.vms.get_mut(&VmId(id)).unwrap());
        self
    }

    fn host(mut self, change: impl FnOnce(&mut World)) -> World {
        change(&mut self);
        self
    }

    fn idle(mut self, idle: u64) -> World {
        self.interval.host.idle = Some(ms(idle));
        self
    }

    fn edge(mut self, vm: u64, vcpu: u32, culprit: Party, time: u64) -> World {
        let victim = self.edges.party(&Party::Vcpu { vm: VmId(vm), vcpu: VcpuId(vcpu) });
        let culprit = self.edges.party(&culprit);
        let amount = Amount::time(ms(time));
        self.edges.add(victim, culprit, EdgeKind::Pcpu, Evidence::Estimated, amount);
        self
    }

    fn cost(self, id: u64, kind: Kind) -> Nanos {
        self.look(|situation| cost(situation, VmId(id), kind))
    }

    fn look<T>(self, look: impl FnOnce(&Situation<'_>) -> T) -> T {
        let mut interval = self.interval;
        interval.edges = self.edges.all();
        look(&Situation {
            interval: &interval,
            vms: self.vms,
            host: self.host,
            weights: self.weights,
        })
    }

    fn all(self) -> Findings {
        self.look(|situation| find(situation, |_| true))
    }

    /// Returns the kinds of a VM's findings, by cost in descending order.
    fn kinds(self, id: u64) -> Vec<Kind> {
        let findings = self.all().findings.into_iter();
        let of_vm = findings.filter(|finding| finding.id == VmId(id));
        of_vm.map(|finding| finding.kind).collect()
    }

    fn only(self) -> Finding {
        let mut findings = self.all().findings;
        assert_eq!(findings.len(), 1, "{findings:#?}");
        findings.remove(0)
    }
}

fn vm(id: u64) -> Party {
    Party::Vm(VmId(id))
}

fn own(id: u64, vcpu: u32) -> Party {
    Party::Vcpu { vm: VmId(id), vcpu: VcpuId(vcpu) }
}

fn process(name: &str, cgroup: &str) -> Party {
    Party::Process { name: name.to_owned(), cgroup: Some(cgroup.to_owned()) }
}

fn stacked(on: &'static str, idle: u64) -> World {
    let world = World::new().vm(1, &[vcpu(500, 500, on), vcpu(500, 500, on)]).idle(idle);
    world.edge(1, 0, own(1, 1), 500).edge(1, 1, own(1, 0), 500)
}

#[test]
fn stacked_vcpus_next_to_an_idle_pcpu() {
    let finding = stacked("0", 1000).only();
    assert_eq!((finding.kind, finding.severity), (Kind::Stacked, Severity::Bad));
    assert_eq!(finding.lost_per_second, SECOND);
    assert_eq!(finding.lost_of_run, Some(1.0));
    assert_eq!(finding.cure.commands, ["sudo taskset -cp 0-1 100", "sudo taskset -cp 0-1 101"]);
    let libvirts = stacked("0", 1000).known(1, |known| known.is_libvirt = true);
    assert_eq!(
        libvirts.only().cure.commands,
        ["virsh vcpupin vm1 0 0-1 --live", "virsh vcpupin vm1 1 0-1 --live"]
    );
}

#[test]
fn waits_for_others_count_if_enough_idles_elsewhere() {
    // A computing VM is pinned to the same pCPU, and has half of it.
    let with_neighbour = |idle: u64| {
        let world = World::new()
            .vm(1, &[vcpu(250, 750, "0"), vcpu(250, 750, "0")])
            .vm(2, &[vcpu(500, 500, "0")])
            .idle(idle);
        let world = world.edge(1, 0, own(1, 1), 250).edge(1, 1, own(1, 0), 250);
        world.edge(1, 0, own(2, 0), 500).edge(1, 1, own(2, 0), 500)
    };
    assert_eq!(with_neighbour(1000).kinds(1), [Kind::Stacked]);
    assert_eq!(with_neighbour(600).kinds(1), [Kind::Neighbour, Kind::Stacked]);
}

#[test]
fn no_stacked_finding_without_idle_pcpus() {
    let busy = stacked("0", 50).only();
    assert_eq!(busy.kind, Kind::TooManyVcpus);
    assert_eq!(busy.cure.commands, [""; 0], "other pCPUs belong to others");
    // The idle time may be that of the pCPU that they share.
    let seldom = [vcpu(250, 50, "0"), vcpu(250, 50, "0")];
    let world = World::new().vm(1, &seldom).idle(500);
    let world = world.edge(1, 0, own(1, 1), 50).edge(1, 1, own(1, 0), 50);
    assert_eq!(world.kinds(1), [Kind::TooManyVcpus]);
    let apart = [vcpu(1000, 0, "0"), vcpu(1000, 0, "1")];
    assert_eq!(World::new().vm(1, &apart).kinds(1), []);
    // Below 5 % of the VM's time and 10 % of each vCPU's.
    let little = World::new().vm(1, &[vcpu(500, 49, "0"), vcpu(451, 49, "0")]);
    let little = little.edge(1, 0, own(1, 1), 49).edge(1, 1, own(1, 0), 49);
    assert_eq!(little.idle(1000).kinds(1), []);
}

#[test]
fn more_vcpus_than_can_run_at_once() {
    let crowd = |vcpus: usize| {
        let ran = 2000 / vcpus as u64;
        let seconds = vec![vcpu(ran.min(1000), 1000 - ran.min(1000), "0-1"); vcpus];
        let mut world = World::new().vm(1, &seconds);
        for n in 0..vcpus as u32 {
            world = world.edge(1, n, vm(1), 1000 - ran.min(1000));
        }
        world
    };
    let finding = crowd(4).only();
    assert_eq!(finding.kind, Kind::TooManyVcpus);
    assert!(finding.cure.commands.is_empty() && finding.cure.remark.contains("than the 2 pCPUs"));
    let libvirts = crowd(4).known(1, |known| known.is_libvirt = true).only();
    assert_eq!(libvirts.cure.commands, ["virsh setvcpus vm1 2 --live"]);
    assert_eq!(crowd(2).kinds(1), []);
}

fn quota(limited: u64, idle: u64) -> World {
    let second = Second { limited, ..vcpu(300, 0, "0-1") };
    World::new().vm(1, &[second]).idle(idle).known(1, |known| {
        known.quotas.push(KnownQuota {
            cgroup: CgroupPath("/vms/vm1".to_owned()),
            quota: Quota { quota_us: 30_000, period_us: 100_000 },
            throttled: None,
        });
    })
}

#[test]
fn a_quota_that_throttles_while_pcpus_idle() {
    let finding = quota(700, 1700).only();
    assert_eq!((finding.kind, finding.severity), (Kind::Quota, Severity::Bad));
    assert_eq!(finding.lost_per_second, ms(700));
    assert_eq!(finding.cure.commands, ["echo -1 | sudo tee /cg/vms/vm1/cpu.cfs_quota_us"]);
    assert!(finding.evidence[1].contains("0.30 pCPUs"), "{finding:#?}");
    let on_v2 = |cgroup: &str, is_libvirt| {
        let cgroup = CgroupPath(cgroup.to_owned());
        let world = quota(700, 1700).host(|world| world.host.version = Version::V2);
        let world = world.known(1, |known| {
            known.quotas[0].cgroup = cgroup;
            known.is_libvirt = is_libvirt;
        });
        world.only().cure.commands.remove(0)
    };
    assert_eq!(on_v2("/vms/vm1", false), "echo max | sudo tee /cg/vms/vm1/cpu.max");
    assert_eq!(
        on_v2("/x.slice/run-1.scope", false),
        "sudo systemctl set-property --runtime run-1.scope CPUQuota="
    );
    assert_eq!(
        on_v2("/machine.slice/machine-qemu-1.scope/libvirt/vcpu0", true),
        "virsh schedinfo vm1 --live --set vcpu_quota=-1"
    );
}

#[test]
fn no_quota_finding_without_throttling_or_idle_pcpus() {
    assert_eq!(quota(9, 1700).kinds(1), []);
    assert_eq!(quota(700, 99).kinds(1), []);
    assert_eq!(quota(0, 1700).kinds(1), []);
}

/// A VM of four vCPUs, two on each pCPU, that received this many ms, next to one that computes on both.
fn hog(received: u64, halted: u64) -> World {
    let run = received / 4;
    let of = |on| vcpu(run, 1000 - run - halted, on);
    let rest = 1000 - received / 2;
    let burn = |on| vcpu(rest, 1000 - rest, on);
    let world = World::new()
        .vm(1, &[of("0"), of("1"), of("0"), of("1")])
        .vm(2, &[burn("0"), burn("1")])
        .known(1, |known| known.due = ms(1000))
        .known(2, |known| known.due = ms(1000));
    world.edge(2, 0, own(1, 0), 1000 - rest).edge(2, 1, own(1, 1), 1000 - rest)
}

#[test]
fn pinned_and_stacked_hog() {
    let findings = hog(1640, 100).all().findings;
    let of_victim: Vec<&Finding> = findings.iter().filter(|one| one.id == VmId(2)).collect();
    let [finding] = of_victim[..] else { panic!("{findings:#?}") };
    assert_eq!(finding.kind, Kind::PinnedHog);
    assert_eq!(finding.lost_per_second, ms(640));
    assert_eq!(finding.cure.commands, ["sudo tandem host run vm1 vm2"]);
}

#[test]
fn no_hog_on_older_kernels_or_without_sleep() {
    let older = hog(1640, 100).host(|world| world.host.kernel = Some((6, 12)));
    assert_eq!(older.kinds(2), [Kind::Neighbour]);
    assert_eq!(hog(1000, 100).kinds(2), [Kind::Neighbour]);
    assert_eq!(hog(1640, 0).kinds(2), [Kind::Turns]);
}

/// Three VMs on pCPU 0, and one there and on pCPU 1, each with this fair share.
fn pinned(due: u64) -> World {
    let mut world = World::new();
    for id in 1..=3 {
        world = world.vm(id, &[vcpu(333, 667, "0")]);
        world = world.known(id, |known| known.due = ms(due));
        world = world.edge(id, 0, own(id % 3 + 1, 0), 667);
    }
    world.vm(4, &[vcpu(1000, 0, "1")])
}

#[test]
fn pins_that_leave_no_fair_division() {
    let findings = pinned(500).all().findings;
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.kind == Kind::UnfairPins));
    assert!(findings[0].cure.commands[0].ends_with("--placement rebalance"));
    // They receive their fair shares.
    assert_eq!(pinned(340).kinds(1), [Kind::Neighbour]);
}

/// A vCPU that always has work with three siblings that halt, and a VM that also uses pCPU 0.
fn slow(siblings_ran: u64, ready: u64) -> World {
    let sibling = vcpu(siblings_ran, 0, "1");
    World::new()
        .vm(1, &[vcpu(1000 - ready, ready, "0"), sibling, sibling, sibling])
        .vm(2, &[vcpu(ready, 0, "0")])
        .edge(1, 0, own(2, 0), ready)
}

#[test]
fn slow_vcpu_delays_its_vm() {
    let finding = slow(100, 450).only();
    assert_eq!(finding.kind, Kind::SlowSibling);
    assert!(finding.cure.commands[0].contains("asymmetric"));
    // Most measured programs of that shape gained nothing, so the remark promises nothing.
    let remark = &finding.cure.remark;
    assert!(remark.starts_with("try this"), "{remark}");
    assert!(remark.contains("gained nothing or lost"), "{remark}");
    // A vCPU that alone has work waits for a neighbour, and so does one whose siblings have work.
    assert_eq!(slow(5, 450).kinds(1), [Kind::Neighbour]);
    assert_eq!(slow(600, 450).kinds(1), [Kind::Neighbour]);
    assert_eq!(slow(100, 99).kinds(1), []);
    // Co-stop counts as halted, too.
    let mut world = slow(100, 450);
    for vcpu in &mut world.interval.vms[0].vcpus[1..] {
        let parts = [(State::Run, vcpu.ran), (State::Costop, Nanos::from_millis(700))];
        vcpu.times = VcpuTimes::from_parts(vcpu.times.wall(), parts).unwrap();
    }
    assert_eq!(world.only().kind, Kind::SlowSibling);
}

/// Two VMs that share both pCPUs; each vCPU of the first sleeps this many ms.
fn restless(slept: u64) -> World {
    let first = vcpu(500 - slept, 500, "0-1");
    let second = vcpu(500, 500, "0-1");
    let mut world = World::new().vm(1, &[first, first]).vm(2, &[second, second]);
    for n in 0..2 {
        world = world.edge(1, n, vm(2), 350).edge(1, n, vm(1), 150);
    }
    world
}

#[test]
fn vms_that_never_sleep_gain_from_turns() {
    let finding = restless(0).only();
    assert_eq!(finding.kind, Kind::Turns);
    // The part attributed to the VM itself is explained, but does not count.
    assert_eq!(finding.lost_per_second, ms(700));
    assert_eq!(finding.cure.commands, ["sudo tandem host run vm1 vm2"]);
    let tenants = restless(0).known(2, |known| known.is_tenants = true).only();
    assert_eq!(tenants.cure.commands, ["sudo tandem host run vm1 2"]);
    assert_eq!(restless(60).kinds(1), [Kind::Neighbour]);
    let in_turns = restless(0).known(1, |known| known.takes_turns = true);
    assert_eq!(in_turns.kinds(1), [Kind::Neighbour]);
    // vCPUs that share a pCPU cannot run at the same time, even in turns.
    let mut pinned = restless(0);
    for vcpu in &mut pinned.interval.vms[0].vcpus {
        vcpu.allowed = set("0");
    }
    assert_eq!(pinned.kinds(1), [Kind::Neighbour, Kind::TooManyVcpus]);
    let one = World::new().vm(1, &[vcpu(500, 500, "0")]).vm(2, &[vcpu(500, 500, "0")]);
    assert_eq!(one.edge(1, 0, own(2, 0), 500).kinds(1), [Kind::Neighbour]);
}

fn emulator(time: u64) -> World {
    let mut world = World::new().vm(1, &[vcpu(1000 - time, time, "0")]);
    world.interval.vms[0].threads.push(ThreadTime { name: "qemu".to_owned(), time: ms(time) });
    let thread = Party::VmThread { vm: VmId(1), name: "qemu".to_owned() };
    world.edge(1, 0, thread, time)
}

#[test]
fn own_threads_take_vcpu_time() {
    let finding = emulator(300).only();
    assert_eq!(finding.kind, Kind::OwnThreads);
    let command = &finding.cure.commands[0];
    assert!(command.contains("-p 1 ") && command.ends_with("taskset -cp 1"), "{command}");
    let libvirts = emulator(300).known(1, |known| known.is_libvirt = true).only();
    assert_eq!(libvirts.cure.commands, ["virsh emulatorpin vm1 1 --live"]);
    assert_eq!(emulator(49).kinds(1), []);
}

fn build(cgroup: &str, time: u64) -> World {
    let mut world = World::new().vm(1, &[vcpu(1000 - time, time, "0-1")]);
    world.interval.host.top_tasks.push(ProcessTime {
        name: "cc1".to_owned(),
        pid: 77,
        cgroup: Some(cgroup.to_owned()),
        time: ms(time),
    });
    world.edge(1, 0, process("cc1", cgroup), time)
}

#[test]
fn host_process_takes_the_time() {
    let finding = build("/build", 500).only();
    assert_eq!(finding.kind, Kind::HostProcess);
    assert!(finding.evidence[1].contains("process 77"), "{finding:#?}");
    let command = |world: World| world.only().cure.commands.remove(0);
    assert_eq!(finding.cure.commands, ["echo 102 | sudo tee /cg/build/cpu.shares"]);
    let on_v2 = |cgroup| build(cgroup, 500).host(|world| world.host.version = Version::V2);
    assert_eq!(
        command(on_v2("/build.service")),
        "sudo systemctl set-property --runtime build.service CPUWeight=10"
    );
    // A slice contains other services, which must not be slowed down.
    for cgroup in ["/system.slice/build.service", "/system.slice"] {
        let cure = on_v2(cgroup).only().cure;
        assert_eq!(cure.commands, [""; 0], "{cgroup}");
        assert!(cure.remark.contains("where others are too"), "{cure:?}");
    }
    assert_eq!(command(build("/", 500)), "sudo renice -n 19 -p 77");
    let in_session = build("/", 500).host(|world| world.host.has_autogroup = true);
    assert_eq!(command(in_session), "echo 19 | sudo tee /proc/77/autogroup");
    assert_eq!(build("/build", 49).kinds(1), []);
}

#[test]
fn many_small_processes_count_together() {
    let mut world = World::new().vm(1, &[vcpu(900, 100, "0-1")]);
    for n in 0..5 {
        world = world.edge(1, 0, process(&format!("cc{n}"), "/build"), 20);
    }
    let finding = world.only();
    assert_eq!(finding.kind, Kind::HostProcess);
    assert!(finding.evidence[0].contains("2 more"), "{finding:#?}");
}

#[test]
fn neighbour_evidence_compares_with_fair_share() {
    let world = |due: u64, ready: u64| {
        let first = [vcpu(400, ready, "0")];
        let world = World::new().vm(1, &first).vm(2, &[vcpu(600, 0, "0")]);
        let world = world.known(1, |known| known.due = ms(due));
        let world = world.known(2, |known| known.due = ms(1000 - due));
        world.edge(1, 0, own(2, 0), ready)
    };
    let behind = world(500, 500).only();
    assert_eq!(behind.kind, Kind::Neighbour);
    assert!(behind.evidence[1].ends_with("less than its due"), "{behind:#?}");
    assert_eq!(behind.lost_of_run, Some(1.25));
    assert!(!behind.cure.commands[0].contains("--weight"));
    let even = world(400, 500).only();
    assert!(even.evidence[1].ends_with("what it is due"), "{even:#?}");
    assert!(even.cure.commands[0].contains("--weight 1=6"), "{even:#?}");
    assert_eq!(world(500, 49).kinds(1), []);
}

#[test]
fn unseen_culprits_are_reported() {
    let world = |time| {
        let world = World::new().vm(1, &[vcpu(1000 - time, time, "0")]);
        world.edge(1, 0, Party::Unseen, time)
    };
    assert_eq!(world(200).only().kind, Kind::Unexplained);
    assert_eq!(world(20).kinds(1), []);
}

#[test]
fn halt_polling_exceeds_run_time() {
    let world = |run, poll| {
        let second = Second { poll, ..vcpu(run, 0, "0") };
        World::new().vm(1, &[second])
    };
    assert_eq!(world(100, 200).only().kind, Kind::HaltPolling);
    assert_eq!(world(200, 150).kinds(1), []);
    assert_eq!(world(10, 90).kinds(1), []);
}

#[test]
fn useless_yields_are_reported() {
    let world = |useless: u64, taken: u64| {
        let mut world = World::new().vm(1, &[vcpu(1000, 0, "0"), vcpu(1000, 0, "1")]);
        let victim = world.edges.party(&own(1, 0));
        let sibling = world.edges.party(&own(1, 1));
        for (kind, count) in [(EdgeKind::YieldUseless, useless), (EdgeKind::YieldTaken, taken)] {
            let amount = Amount { time: ms(100), count: Some(count) };
            world.edges.add(victim, sibling, kind, Evidence::Measured, amount);
        }
        world
    };
    assert_eq!(world(4000, 100).only().kind, Kind::UselessSpinning);
    assert_eq!(world(4000, 4001).kinds(1), []);
    assert_eq!(world(1999, 0).kinds(1), []);
}

#[test]
fn findings_sort_by_cost_and_cover_selected_vms() {
    let mut world = quota(300, 1700).vm(2, &[vcpu(400, 600, "1")]);
    world = world.edge(2, 0, process("dd", "/"), 600);
    let (all, of_first) = world.look(|situation| {
        let of_first = find(situation, |vm| vm == VmId(1));
        (find(situation, |_| true), of_first)
    });
    let kinds: Vec<Kind> = all.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::HostProcess, Kind::Quota]);
    assert_eq!(of_first.findings.len(), 1);
}

#[test]
fn unmeasured_causes_are_listed() {
    let mut world = World::new().vm(1, &[vcpu(100, 0, "0")]);
    let missing = Missing::of_all(Column::State(State::Poll), "run as root");
    world.interval.missing.push(missing);
    let findings = world.all();
    assert_eq!(findings.findings, []);
    let said: Vec<&str> = findings.not_looked_for.iter().map(|one| one.what).collect();
    assert!(said.contains(&"halt polling"), "{said:?}");
    assert!(said.iter().any(|what| what.contains("pause-loop")), "{said:?}");
    assert!(!said.contains(&"quotas that throttle"), "{said:?}");
    assert_eq!(findings.not_looked_for[0].want, "run as root");
}
