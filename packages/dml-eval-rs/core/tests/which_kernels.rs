//! Ends a test run by printing which kernels were tested, and which this CPU lacks.
//!
//! Does not use the test harness, which hides the output of passing tests. Cargo runs test files in
//! the order of names, so this is last.

fn main() {
    // `cargo test -- --list` asks for the tests, but there are none.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let (tried, missing) = (dml_eval::kernel_names(), dml_eval::missing_kernel_names());
    println!("kernels tested on this CPU: {}", tried.join(", "));
    if !missing.is_empty() {
        println!("kernels NOT tested, which this CPU lacks: {}", missing.join(", "));
    }
}
