//! ternarize
fn main() {}
