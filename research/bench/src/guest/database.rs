//! A private MariaDB server for `sysbench oltp_read_write`: data prepared once and copied for each run, and a script that serves one run.
//!
//! The script starts the server on a socket in the measurement's folder, without network and accounts.
//! It waits until the server listens, runs sysbench, and shuts the server down in any case.
//! So server and client are one command, which the agent can run unchanged.
//! Only sysbench's own time and transactions count.
//! The script reads the machine's counters ([`crate::guest::counters`]) before and after sysbench, so no figure includes the start of the server.
//! Redo logs are written at every commit, as by default, but to memory: the bench measures threads that wait for each other, not a disk.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tandem_linux::interrupt::Interrupt;
use thiserror::Error;

use crate::guest::counters::Counters;
use crate::guest::folder::CopyError;
use crate::guest::process::RunError;
use crate::guest::{folder, process};

/// Error of the database.
#[derive(Debug, Error)]
pub enum DatabaseError {
    /// The path of the socket is too long.
    #[error(
        "{} is too long for a socket; a shorter temporary directory would do",
        socket.display()
    )]
    SocketPath {
        /// The path.
        socket: PathBuf,
    },
    /// Creating a folder failed.
    #[error("cannot make {}", path.display())]
    Make {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Writing the script failed.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// A command of the preparation did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A command of the preparation failed.
    #[error("the database could not be prepared: {0}")]
    Failed(String),
    /// Moving the prepared data failed.
    #[error("cannot move the prepared data")]
    Move(#[source] io::Error),
    /// Removing the data of the last run failed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Copying the data for the next run failed.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

const TABLES: u32 = 4;
const ROWS: u32 = 10_000;

/// Maximum time of a command of the preparation.
const LIMIT: Duration = Duration::from_secs(300);

/// Maximum length of a socket's path with its terminating zero byte (sockaddr_un in unix(7)).
const MAX_SOCKET_PATH: usize = 108;

/// `sh -eu SCRIPT FOLDER TANDEM COMMAND…`
const SCRIPT: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
folder=$1 tandem=$2
shift 2
server= client=
finish() {
    trap '' TERM INT HUP
    [ -z "$client" ] || kill "$client" 2>/dev/null || :
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" || :; }
}
trap 'finish; exit 143' TERM INT HUP
trap finish EXIT
root=
[ "$(id -u)" != 0 ] || root=--user=root
mariadbd --no-defaults $root --datadir="$folder/data" --socket="$folder/sock" \
    --pid-file="$folder/pid" --skip-networking --skip-grant-tables \
    --innodb-buffer-pool-size=128M --innodb-log-file-size=16M --innodb-flush-method=fsync \
    >"$folder/server.log" 2>&1 &
server=$!
tries=0
until [ -S "$folder/sock" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 600 ] || ! kill -0 "$server" 2>/dev/null; then
        tail -n 3 "$folder/server.log" >&2
        exit 1
    fi
    sleep 0.05
done
"$tandem" bench guest-counters >"$folder/before"
"$@" &
client=$!
status=0
wait "$client" || status=$?
client=
"$tandem" bench guest-counters >"$folder/after"
exit "$status"
"#;

/// The prepared data.
#[derive(Debug)]
pub struct Database {
    template: PathBuf,
    /// Folder of a run.
    run: PathBuf,
    script: PathBuf,
    tandem: PathBuf,
}

impl Database {
    /// Installs a server's data in `folder` and fills its tables.
    pub fn prepare(
        folder: &Path,
        tandem: &Path,
        interrupt: &Interrupt,
    ) -> Result<Database, DatabaseError> {
        let database = Database {
            template: folder.join("template"),
            run: folder.join("db"),
            script: folder.join("serve"),
            tandem: tandem.to_owned(),
        };
        let socket = database.socket();
        if socket.as_os_str().len() >= MAX_SOCKET_PATH {
            return Err(DatabaseError::SocketPath { socket });
        }
        let making = |path: &Path, source| DatabaseError::Make { path: path.to_owned(), source };
        std::fs::create_dir_all(&database.run).map_err(|error| making(&database.run, error))?;
        std::fs::write(&database.script, SCRIPT)
            .map_err(|source| DatabaseError::Write { path: database.script.clone(), source })?;
        let data = database.run.join("data").display().to_string();
        let mut install: Vec<String> = [
            "mariadb-install-db",
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
            "--innodb-log-file-size=16M",
        ]
        .map(str::to_owned)
        .to_vec();
        install.push(format!("--datadir={data}"));
        if rustix::process::getuid().is_root() {
            install.push("--user=root".to_owned());
        }
        database.step(&install, interrupt)?;
        // A database is a folder, so creating it needs no client.
        let schema = database.run.join("data").join("bench");
        std::fs::create_dir(&schema).map_err(|error| making(&schema, error))?;
        let mut fill = database.sysbench(1);
        fill.push("prepare".to_owned());
        database.step(&database.served(fill), interrupt)?;
        std::fs::rename(database.run.join("data"), &database.template)
            .map_err(DatabaseError::Move)?;
        Ok(database)
    }

    fn step(&self, argv: &[String], interrupt: &Interrupt) -> Result<(), DatabaseError> {
        let run = process::run(argv, &self.run, LIMIT, interrupt)?;
        if run.status.success() { Ok(()) } else { Err(DatabaseError::Failed(run.quote())) }
    }

    /// Restores the prepared data for a run.
    pub fn renew(&self) -> Result<(), DatabaseError> {
        if self.run.exists() {
            std::fs::remove_dir_all(&self.run)
                .map_err(|source| DatabaseError::Remove { path: self.run.clone(), source })?;
        }
        Ok(folder::copy(&self.template, &self.run.join("data"))?)
    }

    /// Returns the command of a run.
    pub fn command(&self, connections: u32, seconds: u32) -> Vec<String> {
        let mut client = self.sysbench(connections);
        client.push(format!("--time={seconds}"));
        client.push("run".to_owned());
        self.served(client)
    }

    /// Returns the machine's counters before and after sysbench, if it ran.
    pub fn window(&self) -> Option<(Counters, Counters)> {
        let read = |name: &str| {
            let text = std::fs::read_to_string(self.run.join(name)).ok()?;
            serde_json::from_str(&text).ok()
        };
        Some((read("before")?, read("after")?))
    }

    fn socket(&self) -> PathBuf {
        self.run.join("sock")
    }

    fn served(&self, client: Vec<String>) -> Vec<String> {
        let mut argv = vec!["sh".to_owned(), "-eu".to_owned()];
        for path in [&self.script, &self.run, &self.tandem] {
            argv.push(path.display().to_string());
        }
        argv.extend(client);
        argv
    }

    fn sysbench(&self, connections: u32) -> Vec<String> {
        let mut argv: Vec<String> = [
            "sysbench",
            "oltp_read_write",
            "--db-driver=mysql",
            "--mysql-user=root",
            "--mysql-db=bench",
            "--rand-seed=1",
        ]
        .map(str::to_owned)
        .to_vec();
        argv.push(format!("--mysql-socket={}", self.socket().display()));
        argv.push(format!("--tables={TABLES}"));
        argv.push(format!("--table-size={ROWS}"));
        argv.push(format!("--threads={connections}"));
        argv
    }
}
