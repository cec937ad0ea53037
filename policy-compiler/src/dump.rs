//! An image as text, for people and for golden tests.

use std::collections::BTreeMap;
use std::fmt;

use crate::image::{ChainId, Image, NO_CLASS, PathId, Row};
use crate::model::{Protocol, Reason};

impl fmt::Display for Image {
    /// Endpoints, addresses, classes, chains with their cells, and rows, each in the order of its numbers. Hashes, counter
    /// slots and sizes are left out: they say nothing to a reader.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_endpoints(f)?;
        self.fmt_addresses(f)?;
        self.fmt_classes(f)?;
        self.fmt_chains(f)?;
        self.fmt_rows(f)
    }
}

impl Image {
    fn fmt_endpoints(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "endpoints")?;
        for (name, local) in &self.endpoints {
            write!(f, "  {name}:")?;
            let [ChainId(ingress), ChainId(egress)] = local.chains;
            writeln!(f, " ingress by chain {ingress}, egress by chain {egress}")?;
        }
        Ok(())
    }

    fn fmt_addresses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "addresses")?;
        let class = |identity: u32| {
            let index = identity.wrapping_sub(self.first_identity) as usize;
            self.classes.get(index).filter(|class| **class != NO_CLASS)
        };
        let default = ("any other".to_owned(), self.default_identity);
        let entries = self.entries.iter().map(|(net, identity)| (net.to_string(), *identity));
        for (net, identity) in entries.chain([default]) {
            write!(f, "  {net}: identity {}, ", identity.0)?;
            match class(identity.0) {
                Some(class) => writeln!(f, "class {class}")?,
                None => writeln!(f, "unknown")?,
            }
        }
        Ok(())
    }

    fn fmt_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "classes")?;
        for (class, subjects) in self.class_truths.iter().enumerate() {
            for truths in subjects {
                let predicates = truths.iter().filter_map(|p| self.predicates.get(*p as usize));
                let texts: Vec<String> = predicates.map(ToString::to_string).collect();
                let text = if texts.is_empty() { "nothing".to_owned() } else { texts.join("; ") };
                writeln!(f, "  {class}: {text}")?;
            }
        }
        Ok(())
    }

    fn fmt_chains(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chains")?;
        let classes = self.class_truths.len();
        for (index, chain) in self.chains.iter().enumerate() {
            let policies: Vec<String> = chain.policies.iter().map(ToString::to_string).collect();
            let policies =
                if policies.is_empty() { "no policy".to_owned() } else { policies.join(", ") };
            write!(f, "  {index}: {}, {policies}", chain.direction)?;
            for ((name, protocol), ports) in &chain.local_ports {
                write!(f, "; here {name} is {protocol} {ports:?}")?;
            }
            writeln!(f)?;
            let mut classes_of: BTreeMap<u32, Vec<String>> = BTreeMap::new();
            let cells = self.cells.iter().skip(index * classes).take(classes);
            for (class, row) in cells.enumerate() {
                classes_of.entry(*row).or_default().push(class.to_string());
            }
            for (row, classes) in classes_of {
                writeln!(f, "     row {row} for class {}", classes.join(" "))?;
            }
        }
        Ok(())
    }

    fn fmt_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rows")?;
        for (index, row) in self.rows.iter().enumerate() {
            self.fmt_row(f, index, row)?;
        }
        Ok(())
    }

    /// What differs from the row's answer to other protocols, then that answer.
    fn fmt_row(&self, f: &mut fmt::Formatter<'_>, index: usize, row: &Row) -> fmt::Result {
        writeln!(f, "  {index}:")?;
        for (protocol, portless) in Protocol::ALL.into_iter().zip(row.portless) {
            let intervals: Vec<(u16, PathId)> = self.intervals(row, protocol).collect();
            for (at, (first, path)) in intervals.iter().enumerate() {
                let last = intervals.get(at + 1).map_or(u16::MAX, |next| next.0.saturating_sub(1));
                if *path != row.other {
                    writeln!(f, "     {protocol} {first}-{last}: {}", self.text(*path))?;
                }
            }
            if portless != row.other {
                writeln!(f, "     {protocol} without port: {}", self.text(portless))?;
            }
        }
        writeln!(f, "     anything else: {}", self.text(row.other))
    }

    fn text(&self, path: PathId) -> String {
        let path = self.path(path);
        match path.reason {
            Reason::Rule(_) => format!("allowed by {}", path.reason),
            Reason::NotIsolated(_) => format!("allowed, {}", path.reason),
            Reason::Isolated(..) | Reason::Unknown(_) => format!("denied, {}", path.reason),
        }
    }
}
