//! hadamard
