//! The changes of trials and the threads that inherited them, until they are reverted.
//!
//! ```text
//! make ─► wait, and look for heirs ─► revert
//!                                └─► keep applied ─► restore, or keep
//! ```
//!
//! Every change is journaled before it is made, so Ctrl-C and kill -9 leave nothing behind ([`Actuator`]).
//! Values that others write in the meantime stay.

use std::time::{Duration, Instant};

use tandem_linux::actuator::{Actuator, ActuatorError};
use tandem_linux::interrupt::{Interrupt, Interrupted};
use tandem_linux::procfs::ProcFs;
use tandem_linux::restore::{RestoreFailure, RestoreReport};
use tandem_linux::thread::ThreadRef;

use super::heirs::Heirs;
use super::steps::{Step, Target};
use super::{heirs, steps};

/// Interval between looks for threads that changed threads started. A look reads one line per process.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Maximum number of looks while heirs are reverted.
/// Each look finds the threads that started during the one before, mostly none.
const ROUNDS: usize = 8;

/// An applied remedy.
struct Made {
    steps: Vec<Step>,
    /// `None` for cgroups, whose settings are not inherited.
    heirs: Option<Heirs>,
    /// The heirs that have to be reverted.
    born: Vec<ThreadRef>,
}

/// The applied remedies.
pub(super) struct Changes {
    procfs: ProcFs,
    actuator: Actuator,
    made: Vec<Made>,
    /// Remedies that could not be reverted completely.
    left: Vec<Made>,
}

impl Changes {
    /// Starts without changes.
    pub(super) fn new(procfs: ProcFs, actuator: Actuator) -> Changes {
        Changes { procfs, actuator, made: Vec::new(), left: Vec::new() }
    }

    /// Returns the threads and knobs that the applied remedies changed.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> {
        self.made.iter().flat_map(|made| made.steps.iter().map(Step::target))
    }

    /// Applies a remedy. After an error, its partial changes are there for [`Self::take_back`].
    pub(super) fn make(&mut self, steps: &[Step]) -> Result<(), String> {
        let threads = steps.iter().filter_map(|step| match step.target() {
            Target::Thread(thread) => Some(thread),
            Target::Knob(..) => None,
        });
        let threads: Vec<ThreadRef> = threads.collect();
        self.made.push(Made { steps: steps.to_vec(), heirs: None, born: Vec::new() });
        if threads.is_empty() {
            return steps::make(&mut self.actuator, steps);
        }
        let since = heirs::now(&self.procfs);
        let since = since.ok_or("/proc/uptime cannot be read, so threads that start from now on cannot be distinguished from older ones")?;
        let outcome = steps::make(&mut self.actuator, steps);
        let inheritance = self.actuator.inheritance(&threads);
        let heirs = Heirs::new(&self.procfs, since, &threads, inheritance);
        if let Some(made) = self.made.last_mut() {
            made.heirs = Some(heirs);
        }
        outcome
    }

    /// Reverts the last remedy. Failed reverts are retried at the end.
    pub(super) fn take_back(&mut self) -> Result<(), ActuatorError> {
        if let Some(mut made) = self.made.pop() {
            let report = made.put_back(&self.procfs, &mut self.actuator)?;
            if !report.is_complete() {
                self.left.push(made);
            }
        }
        Ok(())
    }

    /// Waits, and journals the threads that changed threads start in the meantime.
    pub(super) fn wait(
        &mut self,
        length: Duration,
        interrupt: &Interrupt,
    ) -> Result<(), Interrupted> {
        let deadline = Instant::now() + length;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return interrupt.check();
            }
            interrupt.sleep(left.min(LOOK_EVERY))?;
            for made in &mut self.made {
                // Heirs that cannot be journaled now are found again by the revert.
                let _ = made.look(&self.procfs, &mut self.actuator);
            }
        }
    }

    /// Reverts everything.
    pub(super) fn restore(mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        while let Some(mut made) = self.made.pop() {
            match made.put_back(&self.procfs, &mut self.actuator) {
                // Failures are in the journal and retried below.
                Ok(done) => report.add(RestoreReport { failures: Vec::new(), ..done }),
                Err(error) => report.failures.push(of_heirs(&error)),
            }
        }
        report.add(self.actuator.restore());
        report
    }

    /// Ends with the applied remedies in the journal, for a later restore.
    /// Retries the reverts that failed; the report is about these.
    pub(super) fn keep(mut self) -> RestoreReport {
        let mut report = RestoreReport::default();
        for made in &mut self.made {
            if let Err(error) = made.look(&self.procfs, &mut self.actuator) {
                report.failures.push(of_heirs(&error));
            }
        }
        for mut made in std::mem::take(&mut self.left) {
            match made.put_back(&self.procfs, &mut self.actuator) {
                Ok(done) => report.add(done),
                Err(error) => report.failures.push(of_heirs(&error)),
            }
        }
        self.actuator.abandon();
        report
    }
}

fn of_heirs(error: &ActuatorError) -> RestoreFailure {
    RestoreFailure { what: "the heirs of changed threads".to_owned(), error: error.to_string() }
}

impl Made {
    fn look(&mut self, procfs: &ProcFs, actuator: &mut Actuator) -> Result<(), ActuatorError> {
        if let Some(heirs) = &mut self.heirs {
            self.born.extend(heirs.look(procfs, actuator)?);
        }
        Ok(())
    }

    /// Reverts the changed threads first, so that no further heirs inherit the change, then the heirs.
    fn put_back(
        &mut self,
        procfs: &ProcFs,
        actuator: &mut Actuator,
    ) -> Result<RestoreReport, ActuatorError> {
        let mut report = steps::take_back(actuator, &self.steps)?;
        let mut failed = Vec::new();
        for _ in 0..ROUNDS {
            self.look(procfs, actuator)?;
            if self.born.is_empty() {
                break;
            }
            for heir in std::mem::take(&mut self.born) {
                let released = actuator.release_thread(&heir)?;
                failed.extend((!released.is_complete()).then_some(heir));
                report.add(released);
            }
        }
        self.born = failed;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::thread::sleep;

    use tandem_linux::affinity::{affinity, set_affinity};
    use tandem_linux::cgroup;
    use tandem_linux::thread::Pid;
    use tandem_model::PcpuSet;

    use super::*;

    /// A shell that starts commands on request.
    struct Shell(Child);

    impl Shell {
        fn start() -> Shell {
            // In a process group of its own, apart from the shells of other tests.
            let child = Command::new("sh").process_group(0).stdin(Stdio::piped()).spawn();
            Shell(child.unwrap())
        }

        fn thread(&self) -> ThreadRef {
            ThreadRef::of_process(&ProcFs::host(), Pid(self.0.id())).unwrap()
        }

        /// Starts a command that writes its PID to a file, and waits for that.
        fn starts(&mut self, script: &str, file: &std::path::Path) -> ThreadRef {
            let line = format!("{}\n", script.replace("FILE", file.to_str().unwrap()));
            self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
            let begin = Instant::now();
            loop {
                assert!(begin.elapsed() < Duration::from_secs(20), "{script}");
                let text = fs::read_to_string(file).unwrap_or_default();
                if let Some(pid) = text.strip_suffix('\n') {
                    let pid = Pid(pid.parse().unwrap());
                    return ThreadRef::of_process(&ProcFs::host(), pid).unwrap();
                }
                sleep(Duration::from_millis(5));
            }
        }

        /// Starts a child that sleeps.
        fn sleeper(&mut self, file: &std::path::Path) -> Started {
            Started(self.starts("sh -c 'echo $$ > FILE; exec sleep 60' &", file))
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Kills a process that a shell started.
    struct Started(ThreadRef);

    impl Drop for Started {
        fn drop(&mut self) {
            if self.0.is_alive(&ProcFs::host())
                && let Some(pid) = rustix::process::Pid::from_raw(self.0.pid.0 as i32)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// An actuator for real threads, with an empty cgroup hierarchy.
    fn actuator(dir: &std::path::Path) -> Actuator {
        let root = dir.join("root");
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::create_dir_all(root.join("cpu")).unwrap();
        fs::write(root.join("proc/mounts"), "cgroup /cpu cgroup rw,cpu 0 0\n").unwrap();
        let controller = cgroup::open(&ProcFs::at(&root)).unwrap();
        Actuator::open(controller, &dir.join("state")).unwrap().0
    }

    fn place(thread: &ThreadRef) -> PcpuSet {
        affinity(thread.tid).unwrap()
    }

    /// A shell, its affinity, and the first pCPU of that.
    struct Trial {
        dir: tempfile::TempDir,
        shell: Shell,
        maker: ThreadRef,
        all: PcpuSet,
        first: PcpuSet,
    }

    impl Trial {
        /// Returns `None` on a machine with a single pCPU, which skips the test.
        fn start() -> Option<Trial> {
            let shell = Shell::start();
            let maker = shell.thread();
            let all = place(&maker);
            if all.len() < 2 {
                println!("skipped: it takes two pCPUs");
                return None;
            }
            let first = all.iter().take(1).collect();
            Some(Trial { dir: tempfile::tempdir().unwrap(), shell, maker, all, first })
        }
    }

    #[test]
    fn heirs_are_reverted_unless_set_by_others() {
        let Some(Trial { dir, mut shell, maker, all, first }) = Trial::start() else {
            return;
        };
        let file = |name: &str| dir.path().join(name);
        let before = shell.sleeper(&file("0"));
        set_affinity(before.0.tid, &first).unwrap();
        sleep(Duration::from_millis(20));
        let mut changes = Changes::new(ProcFs::host(), actuator(dir.path()));
        changes.make(&[Step::Affinity(maker, first.clone())]).unwrap();
        let child = shell.sleeper(&file("1"));
        // Its maker has ended, and its parent is another process.
        let orphan = Started(shell.starts("(sh -c 'echo $$ > FILE; exec sleep 60' &)", &file("2")));
        let own = shell.sleeper(&file("3"));
        let second: PcpuSet = all.iter().skip(1).take(1).collect();
        set_affinity(own.0.tid, &second).unwrap();
        for born in [&child.0, &orphan.0] {
            assert_eq!(place(born), first);
        }
        let interrupt = Interrupt::watch().unwrap();
        changes.wait(Duration::from_millis(20), &interrupt).unwrap();
        // One that started after the last look.
        let late = shell.sleeper(&file("4"));
        changes.take_back().unwrap();
        for thread in [&maker, &child.0, &orphan.0, &late.0] {
            assert_eq!(place(thread), all, "{thread}");
        }
        assert_eq!(place(&own.0), second, "it set its own");
        assert_eq!(place(&before.0), first, "it was there before");
        assert!(changes.restore().is_complete());
    }

    #[test]
    fn heirs_are_reverted_after_kill_9() {
        let Some(Trial { dir, mut shell, maker, all, first }) = Trial::start() else {
            return;
        };
        let mut changes = Changes::new(ProcFs::host(), actuator(dir.path()));
        changes.make(&[Step::Affinity(maker, first.clone())]).unwrap();
        let file = dir.path().join("1");
        let child = shell.sleeper(&file);
        let interrupt = Interrupt::watch().unwrap();
        changes.wait(Duration::from_millis(20), &interrupt).unwrap();
        assert!(changes.keep().is_complete());
        assert_eq!(place(&child.0), first);
        drop(actuator(dir.path()));
        assert_eq!([place(&maker), place(&child.0)], [all.clone(), all]);
    }

    #[test]
    fn foreign_write_on_kept_change_stays() {
        let Some(Trial { dir, shell: _shell, maker, all, first }) = Trial::start() else {
            return;
        };
        let mut changes = Changes::new(ProcFs::host(), actuator(dir.path()));
        changes.make(&[Step::Affinity(maker, first)]).unwrap();
        assert!(changes.keep().is_complete());
        let second: PcpuSet = all.iter().skip(1).take(1).collect();
        set_affinity(maker.tid, &second).unwrap();
        // The next trial, or the daemon.
        drop(actuator(dir.path()));
        assert_eq!(place(&maker), second);
    }

    #[test]
    fn failed_remedy_reverts_no_other() {
        let Some(Trial { dir, shell: _shell, maker, all, first }) = Trial::start() else {
            return;
        };
        let bare = dir.path().join("bare");
        fs::create_dir_all(bare.join("proc")).unwrap();
        let uptime = bare.join("proc/uptime");
        fs::write(&uptime, "12.34 5.6\n").unwrap();
        let mut changes = Changes::new(ProcFs::at(&bare), actuator(dir.path()));
        let step = Step::Affinity(maker, first.clone());
        changes.make(std::slice::from_ref(&step)).unwrap();
        fs::remove_file(&uptime).unwrap();
        let other = Shell::start();
        let step = Step::Affinity(other.thread(), first.clone());
        assert!(changes.make(&[step]).unwrap_err().contains("uptime"));
        changes.take_back().unwrap();
        assert_eq!([place(&maker), place(&other.thread())], [first, all]);
    }

    #[test]
    fn keep_reports_failed_reverts() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Shell::start();
        let mut changes = Changes::new(ProcFs::host(), actuator(dir.path()));
        let cgroup = dir.path().join("root/cpu/vm");
        fs::create_dir_all(&cgroup).unwrap();
        let write = |file: &str, text: &str| fs::write(cgroup.join(file), text).unwrap();
        write("cgroup.procs", "");
        write("cpu.shares", "1024\n");
        let vm = tandem_linux::cgroup::CgroupPath("/vm".to_owned());
        let weight = tandem_model::Weight::constant(2048.0);
        changes.make(&[Step::Weight(vm, weight)]).unwrap();
        // Make the file unreadable and unwritable.
        fs::remove_file(cgroup.join("cpu.shares")).unwrap();
        fs::create_dir(cgroup.join("cpu.shares")).unwrap();
        changes.take_back().unwrap();
        let report = changes.keep();
        assert!(!report.is_complete(), "{report}");
        drop(shell);
    }
}
