//! Loads the programs and attaches what this kernel has.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;

use libbpf_rs::ErrorKind;
use libbpf_rs::Link;
use libbpf_rs::MapCore;
use libbpf_rs::MapHandle;
use libbpf_rs::Object;
use libbpf_rs::ObjectBuilder;
use libbpf_rs::OpenObject;
use libbpf_rs::PrintLevel;
use libbpf_rs::ProgramMut;

use super::BpfCost;
use super::BpfError;
use super::MissingEvent;
use super::Options;
use super::events::EVENTS;
use super::events::Event;
use super::events::Without;
use super::kernel;
use super::kernel::KernelTypes;
use super::slots::places;
use tandem_policy::Nanos;

/// `bpf/tandem.bpf.c`
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tandem.bpf.o"));

/// Pairs of victim and culprit, and of vCPUs, for each vCPU that can be watched, and at least.
const PAIRS_PER_VCPU: u32 = 8;
const MIN_PAIRS: u32 = 4096;

/// The programs, attached.
pub struct Programs {
    /// Before the object: detached first.
    _links: Vec<Link>,
    pub object: Object,
    pub maps: Maps,
    pub missing: Vec<MissingEvent>,
    /// Programs that are attached, by the name in [`EVENTS`].
    pub attached: Vec<&'static str>,
    /// Whether the kernel tells of quotas.
    pub has_quotas: bool,
    pub pcpus: u32,
}

/// The maps.
pub struct Maps {
    pub vcpus: MapHandle,
    pub watched: MapHandle,
    pub filter: MapHandle,
    pub siblings: MapHandle,
    pub lost: MapHandle,
    pub edges: MapHandle,
    pub edges_of: [MapHandle; 2],
    pub links: MapHandle,
    pub links_of: [MapHandle; 2],
}

thread_local! {
    /// What libbpf said to this thread.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

fn hear(_level: PrintLevel, text: String) {
    SAID.with_borrow_mut(|said| said.push_str(&text));
}

/// What libbpf said since the last call.
fn said() -> String {
    SAID.take()
}

/// The end of a log, each line after a line break.
fn last_lines(log: &str) -> String {
    const MOST: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(MOST);
    let last = lines[from..].iter();
    last.map(|line| format!("\n  {line}")).collect()
}

impl Programs {
    /// Loads as much as this kernel takes, and attaches it.
    pub fn load(options: Options) -> Result<Programs, BpfError> {
        kernel::check_permissions()?;
        let types = KernelTypes::load()?;
        let before = libbpf_rs::set_print(Some((PrintLevel::Warn, hear)));
        let programs = load(options, &types);
        libbpf_rs::set_print(before);
        programs
    }

    /// What each program cost, as far as the kernel counts it.
    pub fn cost(&self) -> Vec<BpfCost> {
        let mut costs = Vec::new();
        for program in self.object.progs() {
            let name = program.name().to_string_lossy().into_owned();
            let Some(info) = info_of(&program) else {
                continue;
            };
            costs.push(BpfCost {
                program: name,
                runs: info.run_cnt,
                time: Nanos(info.run_time_ns),
            });
        }
        costs
    }

    /// Events that were passed over, so far.
    pub fn events_lost(&self) -> u64 {
        let infos = self.object.progs().filter_map(|program| info_of(&program));
        infos.map(|info| info.recursion_misses).sum()
    }
}

/// What the kernel says of a program; `None` if it is not loaded.
fn info_of(program: &libbpf_rs::Program) -> Option<libbpf_sys::bpf_prog_info> {
    use std::os::fd::AsFd;
    use std::os::fd::AsRawFd;

    if !program.autoload() {
        return None;
    }
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the program is open, and the structure is as long as is said.
    let answer = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut length)
    };
    (answer == 0).then_some(info)
}

/// What BTF describes cannot always be attached to; the kernel says so only when it is tried. So what it refuses is left out, one
/// program after the other, unless nothing works without it.
fn load(options: Options, types: &KernelTypes) -> Result<Programs, BpfError> {
    let mut refused: Vec<(&str, String)> = Vec::new();
    loop {
        let (wanted, mut missing) = choose(options, types, &refused)?;
        let tells_interrupts = kernel::tells_interrupts();
        let names: Vec<String> = wanted
            .iter()
            .map(|event| match event.sure && !tells_interrupts {
                true => format!("{}_unsure", event.program),
                false => event.program.to_owned(),
            })
            .collect();
        if !tells_interrupts && wanted.iter().any(|event| event.sure) {
            missing.push(MissingEvent {
                event: "variable __preempt_count".to_owned(),
                lacks: "interrupts that hit while a vCPU has the pCPU count as its own wake-ups and IPIs",
                because: "/proc/kallsyms does not list it".to_owned(),
            });
        }
        if !types.has_quotas() {
            missing.push(MissingEvent {
                event: "structure cfs_bandwidth".to_owned(),
                lacks: "LIM",
                because: "this kernel has no quotas".to_owned(),
            });
        }
        let (object, pcpus) = match load_programs(options, &names) {
            Ok(loaded) => loaded,
            Err(source) => {
                let log = said();
                let blamed = names.iter().zip(&wanted).find(|(name, event)| {
                    let line = format!("prog '{name}': failed to load");
                    event.without != Without::Nothing && log.contains(&line)
                });
                let Some((_, event)) = blamed else {
                    return Err(BpfError::Load {
                        source: source.into(),
                        log: last_lines(&log),
                    });
                };
                let why = format!("the kernel refused: {source}");
                let is_forbidden = source.kind() == ErrorKind::PermissionDenied;
                refused.push((event.program, why.clone()));
                // Where one function may not be looked at, none may: it need not be tried one after the other.
                if is_forbidden && event.place.is_function() {
                    let functions = wanted.iter().filter(|event| event.place.is_function());
                    refused.extend(functions.map(|event| (event.program, why.clone())));
                }
                continue;
            }
        };
        let maps = Maps::of(&object)?;
        let (attached, links) = attach(&object, &wanted, &names, &mut missing)?;
        return Ok(Programs {
            _links: links,
            object,
            maps,
            missing,
            attached,
            has_quotas: types.has_quotas(),
            pcpus,
        });
    }
}

/// The events to attach to, and what is missing.
fn choose(
    options: Options,
    types: &KernelTypes,
    refused: &[(&str, String)],
) -> Result<(Vec<Event>, Vec<MissingEvent>), BpfError> {
    let mut wanted = Vec::new();
    let mut missing = Vec::new();
    for event in EVENTS {
        let refusal = refused
            .iter()
            .find(|(program, _)| *program == event.program);
        let because = if event.per_exit && !options.exits {
            "not asked for".to_owned()
        } else if !types.has(event.place) {
            match event.place.name().contains("kvm") && !types.has_kvm {
                true => "KVM is not loaded, or its module has no BTF".to_owned(),
                false => "this kernel has none".to_owned(),
            }
        } else if let Some((_, why)) = refusal {
            why.clone()
        } else {
            wanted.push(event);
            continue;
        };
        note(&event, because, &mut missing).ok_or_else(|| BpfError::NoEvent {
            event: event.place.to_string(),
        })?;
    }
    Ok((wanted, missing))
}

/// Notes that an event is missing; `None` if nothing works without it.
fn note(event: &Event, because: String, missing: &mut Vec<MissingEvent>) -> Option<()> {
    match event.without {
        Without::Nothing => return None,
        Without::Lacks(lacks) => missing.push(MissingEvent {
            event: event.place.to_string(),
            lacks,
            because,
        }),
        Without::Fine => {}
    }
    Some(())
}

/// Loads these programs and those that are run by hand; also how many pCPUs there can be.
fn load_programs(options: Options, names: &[String]) -> libbpf_rs::Result<(Object, u32)> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    let pcpus = size_maps(&mut open, options)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_by_hand = name == "settle" || name == "find_out";
        program.set_autoload(is_by_hand || names.contains(&name));
    }
    Ok((open.load()?, pcpus))
}

fn attach(
    object: &Object,
    wanted: &[Event],
    names: &[String],
    missing: &mut Vec<MissingEvent>,
) -> Result<(Vec<&'static str>, Vec<Link>), BpfError> {
    let mut attached = Vec::new();
    let mut links = Vec::new();
    for (event, name) in wanted.iter().zip(names) {
        match find_program(object, name).attach() {
            Ok(link) => {
                attached.push(event.program);
                links.push(link);
            }
            Err(source) => {
                note(event, source.to_string(), missing).ok_or_else(|| BpfError::Attach {
                    event: event.place.to_string(),
                    source: source.into(),
                })?;
            }
        }
    }
    Ok((attached, links))
}

/// Makes the maps as large as they must be; how many pCPUs there can be.
fn size_maps(open: &mut OpenObject, options: Options) -> libbpf_rs::Result<u32> {
    let pcpus = libbpf_rs::num_possible_cpus()? as u32;
    let vcpus = options.max_vcpus.max(1);
    let pairs = vcpus.saturating_mul(PAIRS_PER_VCPU).max(MIN_PAIRS);
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str().unwrap_or_default() {
            "pcpus" => pcpus,
            "vcpus" | "watched" | "siblings" => places(vcpus),
            "edges_0" | "edges_1" | "links_0" | "links_1" => pairs,
            _ => continue,
        };
        map.set_max_entries(entries)?;
    }
    Ok(pcpus)
}

/// One of the programs that `bpf/tandem.bpf.c` has.
pub fn find_program<'a>(object: &'a Object, name: &str) -> ProgramMut<'a> {
    object
        .progs_mut()
        .find(|program| program.name() == OsStr::new(name))
        .unwrap_or_else(|| panic!("bpf/tandem.bpf.c has the program {name}"))
}

impl Maps {
    fn of(object: &Object) -> Result<Maps, BpfError> {
        let find = |name: &'static str| {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .unwrap_or_else(|| panic!("bpf/tandem.bpf.c has the map {name}"));
            MapHandle::try_from(&map).map_err(|source| BpfError::Map {
                map: name,
                action: "open",
                source: source.into(),
            })
        };
        Ok(Maps {
            vcpus: find("vcpus")?,
            watched: find("watched")?,
            filter: find("filter")?,
            siblings: find("siblings")?,
            lost: find("lost")?,
            edges: find("edges")?,
            edges_of: [find("edges_0")?, find("edges_1")?],
            links: find("links")?,
            links_of: [find("links_0")?, find("links_1")?],
        })
    }
}

/// Asks the kernel to count what BPF programs cost, of all that there are, until it is dropped.
pub fn count_costs() -> std::io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;

    // SAFETY: takes a number and gives a file or an error.
    let file = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if file < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just opened it for us.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(file) })
}

/// The name of a task that a program did not see; empty if it is gone.
pub fn comm_of(tid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{tid}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}
