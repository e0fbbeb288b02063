//! `tandem sim sweep merge`: the files of all shards to the one that the whole grid would have written.
//!
//! All files are opened at once and their rows taken cell by cell, so memory holds a row group of each
//! and no more. Every cell must be there once, in the shard that it belongs to.

use std::path::Path;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use anyhow::bail;
use anyhow::ensure;
use clap::Args;

use super::file::Reader;
use super::grid::Identity;
use super::grid::Shard;
use super::place;
use crate::console::print;

/// `tandem sim sweep merge`
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The file to write
    #[arg(value_name = "OUT.parquet")]
    out: PathBuf,
    /// The files of all shards, in any order
    #[arg(value_name = "SHARD.parquet", required = true)]
    shards: Vec<PathBuf>,
    /// Replace a file of another grid
    #[arg(long)]
    force: bool,
}

/// A shard's file.
struct Part<'a> {
    path: &'a Path,
    reader: Reader,
}

/// Joins them.
pub fn main(args: &MergeArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    if let Ok(out) = args.out.canonicalize() {
        let same = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| path == out);
        if let Some(shard) = args.shards.iter().find(same) {
            bail!(
                "{} is to be written and is one of the shards: the first name is the file to write, \
                 the shards follow",
                shard.display()
            );
        }
    }
    let mut parts: Vec<Part<'_>> = Vec::new();
    for path in &args.shards {
        let reader = Reader::open(path)?;
        parts.push(Part { path, reader });
    }
    let (mut parts, whole) = in_order(parts)?;
    if place::is_done(&args.out, &whole, args.force)? {
        return print(&format!(
            "{} is complete already: {whole}. Nothing to do.\n",
            args.out.display()
        ));
    }
    place::check(&args.out)?;
    let rows = place::write(&args.out, &whole, |writer| {
        let shards = parts.len() as u64;
        for cell in 0..whole.cells {
            let part = parts
                .get_mut((cell % shards) as usize)
                .context("a shard is missing")?;
            let wrong = || format!("cannot read {}", part.path.display());
            let mut rows = 0;
            while let Some(row) = part.reader.next_of(cell).with_context(wrong)? {
                writer.push(row);
                rows += 1;
            }
            ensure!(
                rows > 0,
                "{} has no rows of cell {cell} where they should be: it is damaged, run the shard \
                 again with --force",
                part.path.display()
            );
            writer.end_cell()?;
        }
        for part in &mut parts {
            let wrong = || format!("cannot read {}", part.path.display());
            ensure!(
                part.reader.is_at_end().with_context(wrong)?,
                "{} has rows of cells that are not its own: it is damaged, run the shard again with \
                 --force",
                part.path.display()
            );
        }
        Ok(())
    })?;
    print(&super::table(&args.out, &whole, rows, began))
}

/// The shards from first to last, and what they make together.
fn in_order(mut parts: Vec<Part<'_>>) -> anyhow::Result<(Vec<Part<'_>>, Identity)> {
    let first = parts.first().context("there are no shards to merge")?;
    let (path, identity) = (first.path, first.reader.identity().clone());
    for part in &parts {
        let own = part.reader.identity();
        ensure!(
            own.same_grid(&identity),
            "{} and {} are of two grids: {own}; and {identity}. Merge shards of one",
            part.path.display(),
            path.display()
        );
        ensure!(
            own.shard.of == identity.shard.of,
            "{} is shard {} and {} is shard {}: merge shards of one division",
            part.path.display(),
            own.shard,
            path.display(),
            identity.shard
        );
    }
    parts.sort_by_key(|part| part.reader.identity().shard.number);
    for pair in parts.windows(2) {
        let [one, other] = pair else { continue };
        ensure!(
            one.reader.identity().shard != other.reader.identity().shard,
            "shard {} is there twice, as {} and {}: name it once",
            one.reader.identity().shard,
            one.path.display(),
            other.path.display()
        );
    }
    let of = identity.shard.of;
    let missing: Vec<String> = (1..=of)
        .map(|number| Shard { number, of })
        .filter(|&shard| {
            let is = |part: &Part<'_>| part.reader.identity().shard == shard;
            !parts.iter().any(is)
        })
        .map(|shard| shard.to_string())
        .collect();
    ensure!(
        missing.is_empty(),
        "not all shards are there: {} of {identity} {} missing",
        missing.join(", "),
        if missing.len() == 1 { "is" } else { "are" }
    );
    Ok((parts, identity.with_shard(Shard::WHOLE)))
}
