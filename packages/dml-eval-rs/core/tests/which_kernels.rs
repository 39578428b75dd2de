//! The end of a test run: the kernels that the tests tried, and those that this CPU lacks.
//!
//! Without the test harness, which hides the output of tests that pass. Cargo runs the test files by name, so this is the last.

fn main() {
    // `cargo test -- --list` asks for the tests, of which there are none.
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let (tried, missing) = (dml_eval::kernel_names(), dml_eval::missing_kernel_names());
    println!("kernels tested on this CPU: {}", tried.join(", "));
    if !missing.is_empty() {
        println!("kernels NOT tested, which this CPU lacks: {}", missing.join(", "));
    }
}
