//! Network namespaces: made, named, entered.
