//! Nothing: the package exists for its dependency.
