//! `PROGRAM man` and `PROGRAM completions`: manual pages and shell completions, from the same declarations as `--help`.
//!
//! `scripts/deb` installs both.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::options::VERSION;
use crate::{console, note};

/// Date of the commit, if known.
const DAY: &str = env!("TANDEM_DAY");

/// Exit statuses of all programs.
const STATUSES: [(&str, &str); 5] = [
    ("0", "Success."),
    ("1", "Failure."),
    ("2", "Invalid arguments or settings."),
    ("3", "No VM or time matched the arguments."),
    ("4", "Part of the input is unreadable."),
];

/// `PROGRAM man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for the pages; created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `PROGRAM completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes a page for each command that `--help` shows, `tandem-host-run.1` for `tandem host run`.
pub fn pages(args: &ManArgs, root: Command) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    let mut root = without_help(root);
    root.build();
    let mut names = BTreeSet::new();
    write(&root, None, &args.dir, &mut names)?;
    note!("{} pages in {}", names.len(), args.dir.display());
    Ok(())
}

/// Prints the completions for a shell.
pub fn completions(args: &CompletionsArgs, mut root: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let name = root.get_name().to_owned();
    clap_complete::generate(args.shell, &mut root, name, &mut text);
    console::print(String::from_utf8(text)?.trim_end())
}

/// Disables help subcommands, which need no pages.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Returns the subcommands that `--help` shows.
fn below(command: &Command) -> impl Iterator<Item = &Command> {
    let shown = |command: &&Command| !command.is_hide_set();
    command.get_subcommands().filter(shown)
}

/// `tandem-host-run`
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn write(
    command: &Command,
    above: Option<&Command>,
    dir: &Path,
    names: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    let path = dir.join(format!("{}.1", name(command)));
    let text = page(command, above)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    names.insert(name(command).to_owned());
    below(command).try_for_each(|one| write(one, Some(command), dir, names))
}

/// Renders one page in roff.
fn page(command: &Command, above: Option<&Command>) -> io::Result<String> {
    let mut text = Vec::new();
    let man =
        Man::new(command.clone()).date(DAY).source(format!("tandem {VERSION}")).manual("Tandem");
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if below(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    // The root's after-help lists the exit statuses, which have a section of their own.
    if above.is_some() && command.get_after_help().is_some() {
        man.render_extra_section(&mut text)?;
    }
    let mut ours = Roff::default();
    ours.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in STATUSES {
        ours.control("TP", []);
        ours.text([bold(status)]);
        ours.text([roman(meaning)]);
    }
    let near: Vec<&str> = above.into_iter().chain(below(command)).map(name).collect();
    if let Some((last, others)) = near.split_last() {
        ours.control("SH", ["SEE ALSO"]);
        for other in others {
            ours.control("BR", [other, "(1),"]);
        }
        ours.control("BR", [last, "(1)"]);
    }
    ours.to_writer(&mut text)?;
    // Remove escapes of terminal help and duplicate line breaks.
    let text = String::from_utf8_lossy(&text).replace("\u{1b}[0m", "");
    Ok(text.replace(".br\n\n.br\n", ".sp\n"))
}
