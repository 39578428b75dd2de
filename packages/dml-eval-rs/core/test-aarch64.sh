#!/bin/sh
# Cross-compiles the core's tests for aarch64, runs them under QEMU, and runs clippy for that target. No test is left
# out or reduced: emulated, they take a quarter of an hour of processor time.
set -eu
target=aarch64-unknown-linux-gnu
missing=

if [ "$(uname -m)" = aarch64 ]; then
    echo "this machine is aarch64: its own tests are those of make test" >&2
    exit 2
fi

# The compiler of rustup with the target added, or that of Debian's packages.
has_library() { ls "$("$1" --print target-libdir --target $target 2>/dev/null)"/libstd-*.rlib >/dev/null 2>&1; }
if has_library rustc; then
    rustc=rustc rustdoc=rustdoc clippy=cargo-clippy
elif has_library /usr/bin/rustc; then
    rustc=/usr/bin/rustc rustdoc=/usr/bin/rustdoc clippy=/usr/bin/cargo-clippy
else
    missing="$missing\n  Rust's library for $target: rustc-web libstd-rust-web-dev:arm64, or: rustup target add $target"
    clippy=/usr/bin/cargo-clippy
fi
command -v "$clippy" >/dev/null || missing="$missing\n  clippy: rust-web-clippy, or: rustup component add clippy"
linker=aarch64-linux-gnu-gcc
if ! command -v $linker >/dev/null; then
    missing="$missing\n  a cross-compiler: gcc-aarch64-linux-gnu"
fi
# gcc prints the file's bare name if it has none.
if [ "$($linker -print-file-name=libc.a 2>/dev/null || echo libc.a)" = libc.a ]; then
    missing="$missing\n  its C library: libc6-dev-arm64-cross"
fi
command -v qemu-aarch64 >/dev/null || missing="$missing\n  an emulator: qemu-user"
if [ -n "$missing" ]; then
    printf "missing, with the names of Debian's packages:$missing\n" >&2
    echo "On Debian: dpkg --add-architecture arm64 && apt-get update && apt-get install PACKAGES" >&2
    exit 2
fi

export RUSTC=$rustc RUSTDOC=$rustdoc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
# All instructions that the emulator knows, bfloat16 among them.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -cpu max'
# Linked statically: with both libc6-arm64-cross and libc6:arm64 installed, QEMU mixes the two, and threads hang.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS='-C target-feature=+crt-static'
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTDOCFLAGS=$CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS
# The same code with a fraction of the time to compile it.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
# A folder of its own: another compiler's results would replace those of make test.
set -- --package dml-eval --release --target $target --target-dir target/aarch64
cargo test --quiet "$@"
"$clippy" clippy "$@" --all-targets -- -D warnings
