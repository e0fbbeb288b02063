//! Restore after kill -9 with a state directory that is full or read-only.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use tandem_linux::actuator::{Actuator, restore_all};
use tandem_linux::journal::is_pending;
use tandem_model::Weight;

use crate::harness::{Skip, Test};
use crate::helper::{Helper, StateDir, kill_often};
use crate::host::{LiveHost, controller};

/// All tests, in the order in which they run.
pub const ALL: &[(&str, Test)] = &[
    ("kill_9_on_full_and_read_only_disks", kill_9),
    ("full_disk_refuses_changes", refused_while_full),
];

const KILLS: u32 = 40;

/// A small file system in memory, mounted over a state directory.
struct Disk(StateDir);

impl Disk {
    fn new() -> Result<Disk, Skip> {
        let disk = Disk(StateDir::new());
        match disk.mount(0, Some(c"size=1m,mode=755")) {
            Ok(()) => Ok(disk),
            Err(error) => Err(Skip(format!("cannot mount a tmpfs: {error}"))),
        }
    }

    fn dir(&self) -> &Path {
        &self.0.0
    }

    fn mount(&self, flags: libc::c_ulong, options: Option<&std::ffi::CStr>) -> io::Result<()> {
        let target = CString::new(self.dir().as_os_str().as_bytes()).expect("a plain path");
        let data = options.map_or(std::ptr::null(), |options| options.as_ptr().cast());
        // SAFETY: all pointers are to strings that outlive the call.
        let result = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), flags, data)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn be_read_only(&self, is_read_only: bool) {
        let flags =
            if is_read_only { libc::MS_REMOUNT | libc::MS_RDONLY } else { libc::MS_REMOUNT };
        self.mount(flags, None).expect("it can be remounted");
    }

    /// Fills the disk.
    fn fill(&self) {
        let mut file = File::create(self.dir().join("filling")).expect("a file");
        while file.write_all(&[0; 512]).is_ok() {}
    }

    fn make_room(&self) {
        let _ = fs::remove_file(self.dir().join("filling"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let target = CString::new(self.dir().as_os_str().as_bytes()).expect("a plain path");
        // SAFETY: the pointer is to a string that outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

fn kill_9() -> Result<(), Skip> {
    let live_host = LiveHost::new()?;
    let before = live_host.snapshot();
    let disk = Disk::new()?;
    let state_dir = disk.dir().to_str().expect("a plain path").to_owned();
    let pid = live_host.shared.pid().to_string();
    let mut random = Pcg32::seed_from_u64(7);
    let connect = || controller().expect("as before");
    let (kills, pending) = kill_often(KILLS, |round| {
        let seed = random.next_u32().to_string();
        let arguments = [&state_dir, &seed, &pid, &live_host.own.0, &live_host.prefix];
        let daemon = Helper::start("daemon", &arguments.map(String::as_str));
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 40_000)));
        daemon.kill();
        let is_full = round % 2 == 0;
        if is_full {
            disk.fill()
        } else {
            disk.be_read_only(true)
        }
        let was_pending = is_pending(disk.dir());
        // Twice: a journal that could not be emptied must be harmless.
        for again in [false, true] {
            let report = restore_all(connect(), disk.dir()).expect("reading is enough");
            let what = format!("round {round}, seed {seed}, full: {is_full}, again: {again}");
            assert!(report.is_complete(), "{what}: {report}");
            assert_eq!(live_host.snapshot(), before, "{what}: {report}");
        }
        let error = Actuator::open(connect(), disk.dir()).err();
        assert_eq!(error.is_some(), !is_full, "nothing can be journaled: {error:?}");
        disk.be_read_only(false);
        disk.make_room();
        restore_all(connect(), disk.dir()).expect("it restores");
        assert!(!is_pending(disk.dir()), "and empties the journal");
        was_pending
    });
    println!("killed {kills} times: {pending} left changes behind, all were reverted");
    Ok(())
}

fn refused_while_full() -> Result<(), Skip> {
    let mut live_host = LiveHost::new()?;
    live_host.operator_sets(tandem_linux::cgroup::Knob::Weight, "333");
    let before = live_host.snapshot();
    let disk = Disk::new()?;
    let (mut actuator, _) = Actuator::open(controller()?, disk.dir()).expect("it opens");
    let own = live_host.own.clone();
    actuator.set_weight(&own, Weight::constant(500.0)).expect("a weight");
    disk.fill();
    // The last page of the file has some room.
    let weights = (501..2000u32).map(f64::from);
    let refused = weights
        .map(|weight| actuator.set_weight(&own, Weight::constant(weight)))
        .find_map(Result::err)
        .expect("the disk is full");
    assert!(refused.to_string().contains("No space left"), "{refused}");
    let stays = controller()?.weight(&own).expect("a weight");
    assert!(stays.value() >= 500.0, "the current value stays");
    disk.make_room();
    let weight = Weight::constant(3000.0);
    let written = actuator.set_weight(&own, weight).expect("there is room");
    assert_eq!(written, weight);
    disk.fill();
    actuator.abandon();
    let report = restore_all(controller()?, disk.dir()).expect("reading is enough");
    assert!(report.is_complete(), "{report}");
    assert_eq!(live_host.snapshot(), before);
    Ok(())
}
