//! The generated program: 64 MiB of code, one function in each base page, called in random order.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Number of functions, and so of base pages of code: 64 MiB.
pub(super) const FUNCTIONS: u32 = 16384;
/// Numbers of functions that are called, in turn; each is a separate case.
pub(super) const HOT: [u32; 4] = [1024, 2048, 4096, 8192];

/// The driver. It prints the nanoseconds of processor time that a call takes with each number of
/// hot pages.
const DRIVER: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
extern char first[];
typedef uint64_t (*function)(uint64_t);
static uint64_t state = 88172645463325252u;
static uint32_t below(uint32_t bound) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return (uint32_t)((state >> 32) * bound >> 32);
}
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}
enum { SEQUENCE = 1 << 20 };
static function all[FUNCTIONS], sequence[SEQUENCE];
int main(int count, char **arguments) {
    uint64_t calls = 0, sum = 0, wanted = strtoull(arguments[1], NULL, 10);
    for (uint32_t i = 0; i < FUNCTIONS; i++) all[i] = (function)(first + i * 4096ul + i * 17 % 63 * 64);
    for (uint32_t i = FUNCTIONS - 1; i > 0; i--) {
        uint32_t other = below(i + 1);
        function one = all[i]; all[i] = all[other]; all[other] = one;
    }
    for (int argument = 2; argument < count; argument++) {
        uint32_t hot = strtoul(arguments[argument], NULL, 10);
        for (uint32_t i = 0; i < hot; i++) sum = all[i](sum), calls++;
        for (uint32_t i = 0; i < SEQUENCE; i++) sequence[i] = all[below(hot)];
        double start = now();
        for (uint64_t i = 0; i < wanted; i++) sum = sequence[i & (SEQUENCE - 1)](sum);
        printf("%u %.4f\n", hot, (now() - start) / wanted);
        calls += wanted;
    }
    return sum != calls;
}
"#;

/// Returns the code for the assembler. The functions lie at different places of their pages;
/// otherwise the measurement would show the sets of the caches for instructions.
fn code() -> String {
    let mut text = String::from(".text\n.globl first\n.p2align 21\nfirst:\n");
    for number in 0..FUNCTIONS {
        let place = number * 17 % 63 * 64;
        text += &format!(".p2align 12\n.skip {place}, 0xcc\nlea 1(%rdi), %rax\nret\n");
    }
    text + ".p2align 12\n.section .note.GNU-stack,\"\",@progbits\n"
}

/// Compiles it into `directory`, with segments aligned for 2 MiB.
pub(super) fn build(directory: &Path, name: &str) -> Result<PathBuf> {
    let (driver, functions) = (directory.join("driver.c"), directory.join("functions.s"));
    fs::write(&driver, DRIVER)?;
    fs::write(&functions, code())?;
    let program = directory.join(name);
    let mut command = Command::new("gcc");
    command.args(["-O2", "-w", "-Wl,-z,max-page-size=0x200000"]).arg(format!("-DFUNCTIONS={FUNCTIONS}"));
    command.args([&driver, &functions]).arg("-o").arg(&program).stdin(Stdio::null());
    let output = command.output().context("the C compiler gcc did not start: apt-get install gcc")?;
    if !output.status.success() {
        bail!("gcc: {}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("failed"));
    }
    Ok(program)
}

/// The program for Node.js: parsing, compiling, compressing, sorting, formatting. It executes much
/// of Node's code, in turn. It prints the nanoseconds of processor time that an iteration takes,
/// after a quarter as many iterations that do not count.
pub(super) const NODE: &str = r#"
const zlib = require('zlib'), crypto = require('crypto'), vm = require('vm'), util = require('util');
const count = Number(process.argv[1]);
let sum = 0;
function iteration(number) {
    const rows = [];
    for (let i = 0; i < 40; i++) rows.push({ id: i, name: 'row ' + (i * 7919 + number) % 1009, values: [i, i / 3, -i] });
    rows.sort((a, b) => a.name.localeCompare(b.name));
    const text = JSON.stringify(rows);
    const read = JSON.parse(text);
    const packed = zlib.inflateRawSync(zlib.deflateRawSync(text, { level: 1 })).toString('latin1');
    sum += crypto.createHash('sha1').update(packed).digest()[0];
    sum += vm.runInNewContext(`(function f(n) { return n < 2 ? n : f(n - 1) + f(n - 2) })(5) + ${number % 13}`);
    sum += new URL('https://example.org:8080/a/b?c=' + number).searchParams.get('c').length;
    sum += text.replace(/[0-9]+/g, digits => digits.length).length;
    sum += util.inspect(read[number % 40], { depth: 3 }).length + number.toLocaleString('en-US').length;
    sum += Buffer.from(text).toString('base64').split('A').reverse().join('').length;
}
for (let number = 0; number < count / 4; number++) iteration(number);
const before = process.cpuUsage();
for (let number = 0; number < count; number++) iteration(number);
const used = process.cpuUsage(before);
if (sum < 0) throw new Error('impossible');
console.log((used.user + used.system) * 1000 / count);
"#;

/// A C++ file that takes its compiler about half a second.
pub(super) const SOURCE: &str = r#"
#include <algorithm>
#include <map>
#include <string>
#include <vector>
template <int N> struct Step {
    static std::map<std::string, std::vector<int>> run(const std::string &text) {
        auto found = Step<N - 1>::run(text);
        for (std::size_t at = 0; at < text.size(); at += N) found[text.substr(at, N)].push_back(N);
        for (auto &[name, values] : found)
            std::sort(values.begin(), values.end(), [](int a, int b) { return a % N > b % N; });
        return found;
    }
};
template <> struct Step<0> {
    static std::map<std::string, std::vector<int>> run(const std::string &) { return {}; }
};
int main(int, char **words) { return Step<4>::run(words[0]).size(); }
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_calls_what_it_should() {
        let directory = tempfile::tempdir().unwrap();
        let program = match build(directory.path(), "program") {
            Ok(program) => program,
            Err(error) => return megapage_testing::skip(&format!("needs gcc: {error:#}")),
        };
        let output = Command::new(program).args(["1000", "8", "16384"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let hot: Vec<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(hot, ["8", "16384"]);
    }
}
