//! Generated inputs of the programs: data to compress, and a C program to compile.
//!
//! Both come from PCG (O'Neill 2014) with fixed seeds, so every machine works on the same bytes.
//! The data are words of a made-up language, which compress about as well as text.
//! The C program has one file of some functions per unit of work, and a Makefile that builds the first `COUNT` files; they are compiled, not linked.
//! It behaves like any `make -j`: many short processes that compute, and a parent that waits for them.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg32;
use thiserror::Error;

/// Error in generating inputs.
#[derive(Debug, Error)]
pub enum InputsError {
    /// Writing a file failed.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
    /// Creating a folder failed.
    #[error("cannot make {}", path.display())]
    Make {
        /// Path.
        path: PathBuf,
        /// OS error.
        source: io::Error,
    },
}

impl InputsError {
    fn writing(path: &Path) -> impl Fn(io::Error) -> InputsError {
        move |source| InputsError::Write { path: path.to_owned(), source }
    }
}

/// Number of files of the C program.
pub const FILES: u64 = 1000;

/// Functions in a file.
const FUNCTIONS: u32 = 6;

/// Words of the made-up language.
const WORDS: u64 = 4096;

/// Returns a random number below `end`, which is far below 2³²: Lemire's multiply-shift, whose bias is below `end` ÷ 2³².
fn below(random: &mut Pcg32, end: u64) -> u64 {
    (u64::from(random.next_u32()) * end) >> 32
}

/// Megabytes of distinct text. Longer texts repeat it, which compression in blocks of 900 kB does not detect.
const DISTINCT: u64 = 10;

const MEGABYTE: usize = 1_000_000;

/// Writes a file of `megabytes` (10^6 bytes) of words.
pub fn write_text(path: &Path, megabytes: u64) -> Result<(), InputsError> {
    let mut file = File::create(path).map_err(InputsError::writing(path))?;
    let text = text(DISTINCT as usize * MEGABYTE);
    let mut left = megabytes;
    while left > 0 {
        let now = left.min(DISTINCT);
        let part = text.get(..now as usize * MEGABYTE).unwrap_or(&text);
        file.write_all(part).map_err(InputsError::writing(path))?;
        left -= now;
    }
    Ok(())
}

fn text(length: usize) -> Vec<u8> {
    let mut random = Pcg32::seed_from_u64(20_140_619);
    let words: Vec<Vec<u8>> = (0..WORDS)
        .map(|_| {
            let letters = 2 + below(&mut random, 9);
            (0..letters).map(|_| b'a' + below(&mut random, 26) as u8).collect()
        })
        .collect();
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        // The product of two uniform numbers favours small ones, as languages favour few words.
        let word = below(&mut random, WORDS) * below(&mut random, WORDS) / WORDS;
        if let Some(word) = usize::try_from(word).ok().and_then(|word| words.get(word)) {
            text.extend_from_slice(word);
        }
        text.push(match below(&mut random, 12) {
            0 => b'\n',
            _ => b' ',
        });
    }
    text.truncate(length);
    text
}

/// Writes the C program's sources and its Makefile.
pub fn write_program(folder: &Path) -> Result<(), InputsError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(InputsError::writing(&path))
    };
    std::fs::create_dir_all(folder)
        .map_err(|source| InputsError::Make { path: folder.to_owned(), source })?;
    write("Makefile", MAKEFILE)?;
    for file in 0..FILES {
        write(&format!("part{file:04}.c"), &source(file))?;
    }
    Ok(())
}

const MAKEFILE: &str = "\
# make -B -jN COUNT=M compiles the first M parts.
PARTS := $(sort $(wildcard part*.c))
all: $(patsubst %.c,%.o,$(wordlist 1,$(COUNT),$(PARTS)))
%.o: %.c
\t@$(CC) -O2 -c -o $@ $<
.PHONY: all
";

fn source(file: u64) -> String {
    let mut random = Pcg32::seed_from_u64(file);
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n");
    for function in 0..FUNCTIONS {
        let (a, b, c) = (random.next_u32() % 97 + 3, random.next_u32() % 31 + 1, random.next_u32());
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "unsigned part{file}_{function}(unsigned *v, unsigned n)\n{{\n\
             \tunsigned i, j, sum = {c}u;\n\
             \tfor (i = 0; i < n; i++)\n\
             \t\tfor (j = i % {b}u; j < n; j += {b}u) {{\n\
             \t\t\tswitch ((v[j] ^ sum) % 5u) {{\n\
             \t\t\tcase 0: sum += v[j] * {a}u; break;\n\
             \t\t\tcase 1: sum ^= v[i] >> (j % 7u); break;\n\
             \t\t\tcase 2: v[j] = sum - i; break;\n\
             \t\t\tdefault: sum = (sum << 5) | (sum >> 27);\n\
             \t\t\t}}\n\
             \t\t}}\n\
             \tif (sum == {a}u)\n\t\tprintf(\"%u\\n\", sum);\n\
             \treturn sum;\n}}\n\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_deterministic_and_like_text() {
        let data = text(10_000);
        assert_eq!(data, text(10_000));
        assert_eq!(data.len(), 10_000);
        let words: Vec<&[u8]> = data.split(|byte| byte.is_ascii_whitespace()).collect();
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert!(words.len() > 1000 && distinct.len() * 5 < words.len() * 4);
    }

    #[test]
    fn file_has_requested_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        write_text(&path, 12).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 12_000_000);
    }

    #[test]
    fn sources_are_distinct_and_deterministic() {
        assert_eq!(source(3), source(3));
        assert_ne!(source(3), source(4).replace("part4", "part3"));
        assert_eq!(source(0).matches("return sum;").count(), FUNCTIONS as usize);
    }
}
