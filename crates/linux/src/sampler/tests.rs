//! The sampler on real threads that run, sleep and end, and on fake files.

use std::fs;
use std::hint::black_box;
use std::sync::mpsc::channel;

use super::*;
use crate::ids::Tid;
use crate::thread::StartTime;

fn me() -> ThreadRef {
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    ThreadRef::read(&ProcFs::host(), Pid(std::process::id()), tid).unwrap()
}

#[test]
fn busy_thread_runs() {
    let mut sampler = Sampler::new(ProcFs::host());
    let me = me();
    let first = sampler.sample(&me).unwrap();
    // Ends at the next clock tick at the latest.
    while sampler.sample(&me).unwrap().ran == first.ran {
        black_box(0);
    }
    assert_eq!(sampler.read_state(&me).unwrap(), TaskState::Running);
    assert!(!sampler.read_affinity(&me).unwrap().is_empty());
    assert_eq!(sampler.open.len(), 1);
}

#[test]
fn ended_thread_is_gone_and_closed() {
    let mut sampler = Sampler::new(ProcFs::host());
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(me()).unwrap();
        ended.recv().unwrap();
    });
    let other = told.recv().unwrap();
    sampler.sample(&other).unwrap();
    end.send(()).unwrap();
    thread.join().unwrap();
    // The kernel removes the thread a moment after it wakes the joining one.
    let error = loop {
        if let Err(error) = sampler.sample(&other) {
            break error;
        }
    };
    assert!(error.is_gone(), "{error}");
    assert!(sampler.open.is_empty());
    assert!(sampler.sample(&other).unwrap_err().is_gone());
}

#[test]
fn rounds_show_run_time_and_exit() {
    let mut sampler = Sampler::new(ProcFs::host());
    let me = me();
    let mut round = |thread: &ThreadRef| {
        sampler.begin_round();
        sampler.sample(thread)
    };
    let first = round(&me).unwrap();
    while round(&me).unwrap().ran == first.ran {
        black_box(0);
    }
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let process = ThreadRef::of_process(&ProcFs::host(), Pid(child.id())).unwrap();
    let wait = || std::thread::sleep(std::time::Duration::from_millis(1));
    // The clock moves until the process sleeps; then it replaces the file.
    let mut last = round(&process).unwrap();
    loop {
        wait();
        let next = round(&process).unwrap();
        if std::mem::replace(&mut last, next) == next {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(round(&process).unwrap_err().is_gone());
}

#[test]
fn idle_process_is_not_reread() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let process = ThreadRef::of_process(&ProcFs::host(), Pid(child.id())).unwrap();
    let mut sampler = Sampler::new(ProcFs::host());
    let mut reads = 0;
    // An invalid file reveals a read.
    while reads < 1000 {
        sampler.begin_round();
        let sample = sampler.sample(&process).unwrap();
        let open = sampler.open.get_mut(&process).unwrap();
        if open.last.is_some_and(|(clock, _)| process_cpu_time(process.pid) == Some(clock)) {
            open.schedstat = File::open("/dev/null").unwrap();
            sampler.begin_round();
            if let Ok(again) = sampler.sample(&process) {
                assert_eq!(again, sample);
                break;
            }
            sampler.forget(&process);
        }
        reads += 1;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(reads < 1000, "a sleeping process was read again and again");
}

#[test]
fn state_follows_any_name() {
    for (stat, wanted) in [
        ("7 (CPU 0/KVM) S 1 2 3", Some(TaskState::Sleeping)),
        ("7 (a) R) D 1 2", Some(TaskState::DiskSleep)),
        ("7 (x)", None),
        ("", None),
    ] {
        assert_eq!(state_in(stat.as_bytes()), wanted, "{stat}");
    }
}

#[test]
fn guest_time_is_field_43() {
    let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
    let stat = format!("7 (CPU 0/KVM) R {}", fields.join(" "));
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    let activity = activity_in(stat.as_bytes()).unwrap();
    assert_eq!(activity.state, TaskState::Running);
    assert_eq!(activity.guest, Nanos(43 * tick));
    for text in ["", "7 (x) R 1 2", &stat.replace(" 43 ", " x ")] {
        assert_eq!(activity_in(text.as_bytes()), None, "{text}");
    }
    let mut sampler = Sampler::new(ProcFs::host());
    let me = me();
    assert_eq!(sampler.read_activity(&me).unwrap().guest, Nanos::ZERO);
    sampler.sample(&me).unwrap();
    let activity = sampler.read_activity(&me).unwrap();
    assert_eq!((activity.state, activity.guest), (TaskState::Running, Nanos::ZERO));
}

#[test]
fn reused_tid_is_not_sampled() {
    let mut sampler = Sampler::new(ProcFs::host());
    let other = ThreadRef { start: StartTime(1), ..me() };
    assert!(sampler.sample(&other).unwrap_err().is_gone());
    assert!(sampler.open.is_empty());
}

#[test]
fn idle_time_is_read_per_online_pcpu() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc")).unwrap();
    fs::create_dir_all(root.path().join("sys/devices/system/cpu")).unwrap();
    let stat = "cpu  9 9 9 900 90 0 0 0 0 0\ncpu0 1 2 3 400 20 0 0 0 0 0\n\
                cpu3 1 2 3 500 70 0 0 0 0 0\nintr 12 0\nctxt 5\n";
    fs::write(root.path().join("proc/stat"), stat).unwrap();
    let online = root.path().join("sys/devices/system/cpu/online");
    fs::write(&online, "0,3\n").unwrap();
    let sampler = Sampler::new(ProcFs::at(root.path()));
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    let idle = sampler.pcpu_idle().unwrap();
    let wanted = [(PcpuId(0), Nanos(420 * tick)), (PcpuId(3), Nanos(570 * tick))];
    assert_eq!(idle, wanted.into());
    assert_eq!(sampler.online_pcpus().unwrap().to_string(), "0,3");
    fs::write(root.path().join("proc/stat"), "cpu0 1 2\n").unwrap();
    let error = sampler.pcpu_idle().unwrap_err().to_string();
    assert!(error.contains("cpu0 1 2"), "{error}");
}

#[test]
fn missing_schedstat_is_named() {
    let root = tempfile::tempdir().unwrap();
    let task = root.path().join("proc/7/task/7");
    fs::create_dir_all(&task).unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    fs::write(task.join("stat"), stat).unwrap();
    let procfs = ProcFs::at(root.path());
    let thread = ThreadRef::of_process(&procfs, Pid(7)).unwrap();
    let mut sampler = Sampler::new(procfs);
    let error = sampler.sample(&thread).unwrap_err().to_string();
    assert!(error.contains("CONFIG_SCHED_INFO"), "{error}");
    fs::write(task.join("schedstat"), "1 2 3\n").unwrap();
    let sample = sampler.sample(&thread).unwrap();
    assert_eq!((sample.ran, sample.waited), (Nanos(1), Nanos(2)));
    assert_eq!(sample.runs, 3);
    sampler.forget(&thread);
    fs::write(task.join("schedstat"), "what\n").unwrap();
    let error = sampler.sample(&thread).unwrap_err().to_string();
    assert!(error.contains("'what'"), "{error}");
}

#[test]
fn schedstat_needs_three_whole_numbers() {
    let most = u64::MAX;
    let sample = VcpuSample::parse(format!("0 {most}  17\n").as_bytes()).unwrap();
    assert_eq!((sample.ran, sample.waited, sample.runs), (Nanos(0), Nanos(most), 17));
    for text in ["", "\n", "1 2", "1 2 \n", "1 2 x", "1 2 3x", "1 -2 3", "1 18446744073709551616 3"]
    {
        assert_eq!(VcpuSample::parse(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn hostile_thread_count_leaves_files_for_others() {
    let mut sampler = Sampler { room: 1, ..Sampler::new(ProcFs::host()) };
    let me = me();
    let (tell, told) = channel();
    let (end, ended) = channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(self::me()).unwrap();
        ended.recv().unwrap();
    });
    let other = told.recv().unwrap();
    sampler.sample(&me).unwrap();
    assert_eq!(sampler.overflow(), None);
    let first = sampler.sample(&other).unwrap();
    assert!(sampler.sample(&other).unwrap().ran >= first.ran);
    assert_eq!((sampler.open.len(), sampler.overflow()), (1, Some(1)));
    end.send(()).unwrap();
    thread.join().unwrap();
    let error = loop {
        if let Err(error) = sampler.sample(&other) {
            break error;
        }
    };
    assert!(error.is_gone(), "{error}");
    sampler.sample(&me).unwrap();
    let limit = getrlimit(Resource::Nofile).maximum;
    assert!(limit.is_none_or(|limit| (room() as u64) * 2 + limit / 8 <= limit));
}
