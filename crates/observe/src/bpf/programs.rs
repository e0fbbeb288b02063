//! Loads the programs and attaches those whose events this kernel has.

use std::cell::RefCell;
use std::ffi::OsStr;

use libbpf_rs::{
    Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramMut,
    ProgramType,
};

use super::events::{EVENTS, Event, Without};
use super::kernel::{Described, KernelTypes};
use super::reading::Absence;
use super::slots::slot_count;
use super::{BpfCost, BpfError, MissingEvent, Options, kernel};
use tandem_model::Nanos;

/// The compiled `bpf/tandem.bpf.c`.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tandem.bpf.o"));

/// Number of edges and links per watched vCPU, and their minimum.
const PAIRS_PER_VCPU: u32 = 8;
const MIN_PAIRS: u32 = 4096;

/// A program's name in [`EVENTS`] and its link.
type NamedLink = (&'static str, Link);

/// The loaded and attached programs.
pub struct Programs {
    /// Precedes `object`, since fields drop in order and links must detach first.
    links: Vec<NamedLink>,
    pub object: Object,
    pub maps: Maps,
    pub missing: Vec<MissingEvent>,
    /// Programs that the kernel accepted, by their name in [`EVENTS`].
    pub attached: Vec<&'static str>,
    /// Whether the kernel has CPU quotas.
    pub has_quotas: bool,
    pub pcpus: u32,
}

/// Handles of the maps.
pub struct Maps {
    pub vcpus: MapHandle,
    pub watched: MapHandle,
    pub filter: MapHandle,
    pub siblings: MapHandle,
    pub lost: MapHandle,
    pub settings: MapHandle,
    pub edges: DoubleBuffer,
    pub links: DoubleBuffer,
}

/// A pair of maps: the programs write one while user space empties the other.
pub struct DoubleBuffer {
    pub name: &'static str,
    /// The outer map that holds the active one.
    pub place: MapHandle,
    pub maps: [MapHandle; 2],
    /// Index of the active map.
    pub active: usize,
}

thread_local! {
    /// Messages of libbpf on this thread.
    static MESSAGES: RefCell<String> = const { RefCell::new(String::new()) };
}

fn collect_message(_level: PrintLevel, text: String) {
    MESSAGES.with_borrow_mut(|messages| messages.push_str(&text));
}

/// Returns the messages of libbpf since the last call.
fn take_messages() -> String {
    MESSAGES.take()
}

/// Returns the end of a log, each line after a line break.
fn last_lines(log: &str) -> String {
    const MAX_LINES: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(MAX_LINES);
    let last = lines[from..].iter();
    last.map(|line| format!("\n  {line}")).collect()
}

impl Programs {
    /// Loads the programs that this kernel accepts, and attaches them.
    pub fn load(options: Options) -> Result<Programs, BpfError> {
        kernel::check_permissions()?;
        let types = KernelTypes::load()?;
        let before = libbpf_rs::set_print(Some((PrintLevel::Warn, collect_message)));
        let programs = load(options, &types);
        libbpf_rs::set_print(before);
        programs
    }

    /// Returns the cost of each program, if the kernel counts it.
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

    /// Detaches a program, for tests.
    pub fn detach(&mut self, program: &str) {
        self.links.retain(|(name, _)| *name != program);
    }

    /// Attaches a program again.
    pub fn attach_again(&mut self, program: &'static str) -> Result<(), BpfError> {
        let attached = find_program(&self.object, program).attach();
        let link = attached.map_err(|source| BpfError::Attach {
            event: program.to_owned(),
            source: source.into(),
        })?;
        self.links.push((program, link));
        Ok(())
    }

    /// Returns the number of events that the kernel skipped because of recursion.
    pub fn events_lost(&self) -> u64 {
        let infos = self.object.progs().filter_map(|program| info_of(&program));
        infos.map(|info| info.recursion_misses).sum()
    }
}

/// Returns the kernel's information about a program; `None` if it is not loaded.
fn info_of(program: &libbpf_rs::Program) -> Option<libbpf_sys::bpf_prog_info> {
    use std::os::fd::{AsFd, AsRawFd};

    if !program.autoload() {
        return None;
    }
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the program is open, and `length` is the size of the structure.
    let answer = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut length)
    };
    (answer == 0).then_some(info)
}

/// Loads the wanted programs, and retries without those that the kernel refuses although BTF describes their events.
/// Fails if an indispensable program is refused.
fn load(options: Options, types: &KernelTypes) -> Result<Programs, BpfError> {
    let mut refused: Vec<Refused> = Vec::new();
    let may_see_modules = kernel::may_see_modules();
    loop {
        let (wanted, mut missing) = choose(options, types, may_see_modules, &refused)?;
        let exposes_interrupts = types.exposes_interrupts();
        let names: Vec<String> = wanted
            .iter()
            .map(|event| {
                if event.sure && !exposes_interrupts {
                    format!("{}_unsure", event.program)
                } else {
                    event.program.to_owned()
                }
            })
            .collect();
        if !exposes_interrupts && wanted.iter().any(|event| event.sure) {
            missing.push(MissingEvent {
                event: "variable __preempt_count".to_owned(),
                lacks: "interrupts that hit while a vCPU has the pCPU count as its own wake-ups and IPIs",
                absence: Absence::NotThere,
                because: "the kernel does not say where it is (BTF, /proc/kallsyms)".to_owned(),
            });
        }
        if !types.has_quotas() {
            missing.push(MissingEvent {
                event: "structure cfs_bandwidth".to_owned(),
                lacks: "LIM",
                absence: Absence::NotThere,
                because: "this kernel has no quotas".to_owned(),
            });
        }
        let (object, pcpus) = match load_programs(options, &names) {
            Ok(loaded) => loaded,
            Err(source) => {
                let log = take_messages();
                match refusal(&wanted, &source, &log) {
                    Some(one) => refused.push(one),
                    None => {
                        return Err(BpfError::Load {
                            source: source.into(),
                            log: last_lines(&log),
                        });
                    }
                }
                continue;
            }
        };
        let maps = Maps::of(&object)?;
        let (attached, links) = attach(&object, &wanted, &names, &mut missing)?;
        return Ok(Programs {
            links,
            object,
            maps,
            missing,
            attached,
            has_quotas: types.has_quotas(),
            pcpus,
        });
    }
}

/// Returns the program that the kernel refused, from libbpf's messages; `None` if they name none, or an indispensable one.
fn refusal(wanted: &[Event], source: &libbpf_rs::Error, log: &str) -> Option<Refused> {
    let name = last_program(log)?;
    let name = name.strip_suffix("_unsure").unwrap_or(name);
    let event = wanted.iter().find(|event| event.program == name)?;
    if event.without == Without::Nothing {
        return None;
    }
    let (absence, because) = if is_forbidden(&format!("{source:#}"), log) {
        (Absence::NotAllowed, format!("the kernel lets no program look at it: {source}"))
    } else {
        (Absence::Refused, format!("the kernel refused the program: {source}"))
    };
    Some(Refused { program: event.program, absence, because })
}

/// Returns the program in libbpf's last message about one: loading ends at the first that fails.
fn last_program(log: &str) -> Option<&str> {
    let mut lines = log.lines().rev();
    lines.find_map(|line| Some(line.split_once("prog '")?.1.split_once("':")?.0))
}

/// A program that the kernel refused.
struct Refused {
    program: &'static str,
    absence: Absence,
    because: String,
}

/// Whether the kernel forbids programs for an event, as opposed to refusing this program's code.
/// The verifier returns EACCES too, but logs more.
fn is_forbidden(error: &str, log: &str) -> bool {
    let is_permission = error.contains("os error 1)") || error.contains("os error 13)");
    let is_verifiers =
        log.contains("processed ") || log.contains("invalid ") || log.contains("R0 ");
    is_permission && !is_verifiers
}

/// Selects the events to attach to, and lists the missing ones.
fn choose(
    options: Options,
    types: &KernelTypes,
    may_see_modules: bool,
    refused: &[Refused],
) -> Result<(Vec<Event>, Vec<MissingEvent>), BpfError> {
    let mut wanted = Vec::new();
    let mut missing = Vec::new();
    for event in EVENTS {
        let refusal = refused.iter().find(|one| one.program == event.program);
        let described = types.place(event.place);
        let (absence, because) = if event.per_exit && !options.exits {
            (Absence::NotAsked, "not asked for".to_owned())
        } else if described.is_none() {
            let because = if event.place.name().contains("kvm") && !types.has_kvm {
                "KVM is not loaded, or its module has no BTF"
            } else {
                "this kernel has none"
            };
            (Absence::NotThere, because.to_owned())
        } else if described == Some(Described::Module) && !may_see_modules {
            // The kernel would say that there is no such event (ESRCH).
            let because = "it is in a module of the kernel, which takes CAP_SYS_ADMIN: run as root";
            (Absence::NotAllowed, because.to_owned())
        } else if let Some(refusal) = refusal {
            (refusal.absence, refusal.because.clone())
        } else {
            wanted.push(event);
            continue;
        };
        note(&event, absence, because, &mut missing)
            .ok_or_else(|| BpfError::NoEvent { event: event.place.to_string() })?;
    }
    Ok((wanted, missing))
}

/// Records a missing event; `None` if it is indispensable.
fn note(
    event: &Event,
    absence: Absence,
    because: String,
    missing: &mut Vec<MissingEvent>,
) -> Option<()> {
    match event.without {
        Without::Nothing => return None,
        Without::Lacks(lacks) => {
            missing.push(MissingEvent { event: event.place.to_string(), lacks, absence, because })
        }
        Without::Fine => {}
    }
    Some(())
}

/// Loads the named programs, and also returns the number of possible pCPU numbers.
fn load_programs(options: Options, names: &[String]) -> libbpf_rs::Result<(Object, u32)> {
    let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
    let pcpus = size_maps(&mut open, options)?;
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(names.contains(&name));
        if options.refused.is_some_and(|refused| name.trim_end_matches("_unsure") == refused) {
            program.set_prog_type(ProgramType::Unspec);
        }
    }
    Ok((open.load()?, pcpus))
}

fn attach(
    object: &Object,
    wanted: &[Event],
    names: &[String],
    missing: &mut Vec<MissingEvent>,
) -> Result<(Vec<&'static str>, Vec<NamedLink>), BpfError> {
    let mut attached = Vec::new();
    let mut links = Vec::new();
    for (event, name) in wanted.iter().zip(names) {
        if !event.place.is_attached() {
            attached.push(event.program);
            continue;
        }
        match find_program(object, name).attach() {
            Ok(link) => {
                attached.push(event.program);
                links.push((event.program, link));
            }
            Err(source) => {
                note(event, Absence::Refused, source.to_string(), missing).ok_or_else(|| {
                    BpfError::Attach { event: event.place.to_string(), source: source.into() }
                })?;
            }
        }
    }
    Ok((attached, links))
}

/// Sizes the maps, and returns the number of possible pCPU numbers.
fn size_maps(open: &mut OpenObject, options: Options) -> libbpf_rs::Result<u32> {
    // Programs know pCPUs by number.
    let pcpus = match kernel::pcpu_numbers() {
        Some(numbers) => numbers,
        None => libbpf_rs::num_possible_cpus()? as u32,
    };
    let vcpus = options.max_vcpus.max(1);
    let pairs = vcpus.saturating_mul(PAIRS_PER_VCPU).max(MIN_PAIRS);
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str().unwrap_or_default() {
            "pcpus" => pcpus,
            "vcpus" | "watched" | "siblings" => slot_count(vcpus),
            "edges_0" | "edges_1" | "links_0" | "links_1" => pairs,
            _ => continue,
        };
        map.set_max_entries(entries)?;
    }
    Ok(pcpus)
}

/// Returns a program of `bpf/tandem.bpf.c`.
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
            settings: find("settings")?,
            edges: DoubleBuffer {
                name: "edges",
                place: find("edges")?,
                maps: [find("edges_0")?, find("edges_1")?],
                active: 0,
            },
            links: DoubleBuffer {
                name: "links",
                place: find("links")?,
                maps: [find("links_0")?, find("links_1")?],
                active: 0,
            },
        })
    }
}

/// Makes the kernel count the run time of all BPF programs until the file is dropped.
pub fn count_costs() -> std::io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;

    // SAFETY: takes a number and returns a file or an error.
    let file = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if file < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just opened it for us.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_names_the_refused_program() {
        let log = "libbpf: prog 'first': found no types\n\
            libbpf: prog 'yield_to': BPF program load failed: Operation not permitted\n\
            libbpf: prog 'yield_to': failed to load: -1\n\
            libbpf: failed to load object 'vcpus'";
        assert_eq!(last_program(log), Some("yield_to"));
        assert_eq!(last_program("libbpf: failed to load object 'vcpus'"), None);
    }

    #[test]
    fn verifier_errors_do_not_forbid_an_event() {
        let denied = "failed to load object: Permission denied (os error 13)";
        let verifier = "prog 'on_halt': -- BEGIN PROG LOAD LOG --\nR1 invalid mem access 'scalar'\nprocessed 12 insns\n";
        assert!(!is_forbidden(denied, verifier));
        let silent = "prog 'on_halt': BPF program load failed: -EACCES\nprog 'on_halt': failed to load: -13\n";
        assert!(is_forbidden(denied, silent));
        assert!(is_forbidden("Operation not permitted (os error 1)", ""));
        assert!(!is_forbidden("Argument list too long (os error 7)", ""));
        assert!(!is_forbidden("No such process (os error 13x)", ""));
    }
}
