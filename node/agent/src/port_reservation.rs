//! Ports that the kernel does not choose for processes: `net.ipv4.ip_local_reserved_ports`, for both families.
//!
//! The setting holds other programs' ports, too. So a file records which of them Manx has added, and only these are removed
//! later.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use manx_linux::netlink::PortRange;
use manx_linux::netns::sysctl;
use manx_linux::whole_file;

const RESERVED: &str = "ipv4/ip_local_reserved_ports";
const LOCAL: &str = "ipv4/ip_local_port_range";

/// The reason why ports cannot be reserved or given back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel gives these ports to the node's own processes.
    #[error(
        "the ports for the way out, {egress} (--egress-ports), are also for the node's own processes \
         (net.ipv4.ip_local_port_range is {local:?}): expected ranges without a common port; choose others by --egress-ports, or \
         sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\""
    )]
    Local { egress: PortRange, local: String },
    /// A text is no list of ports.
    #[error(
        "{at} is no list of ports: found {found:?}, expected one like 8080,30000-32767; correct it, or delete it if it is a file"
    )]
    List { at: String, found: String },
    /// The record of reserved ports cannot be used.
    #[error(
        "the record of the ports that Manx has reserved, {path}, cannot be read or written: {source}"
    )]
    Record { path: PathBuf, source: io::Error },
    /// The kernel's setting cannot be used.
    #[error(transparent)]
    Setting(#[from] sysctl::Error),
}

/// A set of ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ports(BTreeSet<u16>);

impl Ports {
    fn of(ranges: &[PortRange]) -> Self {
        Self(ranges.iter().flat_map(|range| range.first()..=range.last()).collect())
    }

    /// Parses a list like `1024,8000-8010`. Returns `None` if the text has another form.
    fn parse(text: &str) -> Option<Self> {
        let mut ports = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            ports.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
        }
        Some(Self(ports))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut rest = self.0.iter().copied().peekable();
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a string does not fail.
            let _ = if first == last {
                write!(text, "{comma}{first}")
            } else {
                write!(text, "{comma}{first}-{last}")
            };
        }
        text
    }
}

/// Refuses a range from which the kernel gives ports to the node's own processes. Call it in the node's namespace.
pub(crate) fn check_apart(egress: PortRange) -> Result<(), Error> {
    let found = sysctl::read(LOCAL)?;
    let mut ends = found.split_whitespace().filter_map(|end| end.parse::<u16>().ok());
    match (ends.next(), ends.next()) {
        (Some(first), Some(last)) if last < egress.first() || egress.last() < first => Ok(()),
        _ => Err(Error::Local { egress, local: found.replace('\t', " ") }),
    }
}

/// Reserves exactly these ranges for Manx, unless it `only_looks`. Returns the list of their ports, and whether the
/// kernel's setting already had that value. Call it in the node's namespace; repeating it changes nothing.
pub(crate) fn reserve(
    ranges: &[PortRange],
    record: &Path,
    only_looks: bool,
) -> Result<(String, bool), Error> {
    let now = read()?;
    let ours = recorded(record)?;
    let others: BTreeSet<u16> = now.0.difference(&ours.0).copied().collect();
    let wanted = Ports::of(ranges);
    let added = Ports(wanted.0.difference(&others).copied().collect());
    if added != ours && !only_looks {
        let failed = |source| Error::Record { path: record.to_owned(), source };
        whole_file::replace(record, added.text().as_bytes()).map_err(failed)?;
    }
    let all = Ports(others.union(&wanted.0).copied().collect());
    let is_there = all == now;
    if !is_there && !only_looks {
        write(&all)?;
    }
    Ok((wanted.text(), is_there))
}

/// Gives back the ports that the record names, and removes the record. It is no error if there is none.
pub(crate) fn give_back(record: &Path) -> Result<(), Error> {
    let (now, ours) = (read()?, recorded(record)?);
    let others = Ports(now.0.difference(&ours.0).copied().collect());
    if others != now {
        write(&others)?;
    }
    match std::fs::remove_file(record) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Record { path: record.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn read() -> Result<Ports, Error> {
    let text = sysctl::read(RESERVED)?;
    Ports::parse(&text).ok_or(Error::List { at: RESERVED.to_owned(), found: text })
}

fn write(ports: &Ports) -> Result<(), Error> {
    // The kernel treats an empty line as an empty list, and ignores an empty write.
    let text = format!("{}\n", ports.text());
    Ok(sysctl::set(RESERVED, &text)?)
}

fn recorded(record: &Path) -> Result<Ports, Error> {
    let text = match std::fs::read_to_string(record) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ports::default()),
        Err(source) => return Err(Error::Record { path: record.to_owned(), source }),
    };
    Ports::parse(&text).ok_or_else(|| Error::List { at: record.display().to_string(), found: text })
}

#[cfg(test)]
mod tests {
    use manx_linux::netns;
    use manx_linux::testing::namespaces_allowed;

    use super::*;

    #[test]
    fn a_list_of_ports_is_written_as_the_kernel_writes_it() {
        for text in ["", "80", "80-81", "80,8000-8010,65535"] {
            assert_eq!(Ports::parse(text).unwrap().text(), text);
        }
        assert_eq!(Ports::parse("7,5-6,9\n").unwrap().text(), "5-7,9");
        for wrong in ["x", "1-", "70000", "1-2-3"] {
            assert_eq!(Ports::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn others_ports_stay_reserved_and_ours_are_given_back() {
        if !namespaces_allowed() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("reserved-ports");
        let range = |first, last| PortRange::new(first, last).unwrap();
        netns::run_in(netns::create().unwrap(), || {
            let now = || sysctl::read(RESERVED).unwrap();
            sysctl::set(RESERVED, "8080,61000-61010").unwrap();
            let ours = [range(30000, 32767), range(61000, 65534)];
            let all = "30000-32767,61000-65534".to_owned();
            assert_eq!(reserve(&ours, &record, true).unwrap(), (all.clone(), false));
            assert_eq!(now(), "8080,61000-61010", "a look changes nothing");
            assert_eq!(reserve(&ours, &record, false).unwrap(), (all.clone(), false));
            assert_eq!(now(), "8080,30000-32767,61000-65534");
            assert_eq!(
                reserve(&ours, &record, false).unwrap(),
                (all, true),
                "again changes nothing"
            );
            // Another agent has other settings.
            reserve(&[range(62000, 62001)], &record, false).unwrap();
            assert_eq!(now(), "8080,61000-61010,62000-62001");
            give_back(&record).unwrap();
            assert_eq!(now(), "8080,61000-61010");
            give_back(&record).unwrap();
            sysctl::set(RESERVED, "\n").unwrap();
            reserve(&ours, &record, false).unwrap();
            give_back(&record).unwrap();
            assert_eq!(now(), "");
        })
        .unwrap();
    }

    #[test]
    fn a_range_from_which_processes_get_ports_is_refused() {
        if !namespaces_allowed() {
            return;
        }
        let egress = PortRange::new(61000, 65534).unwrap();
        let told = netns::run_in(netns::create().unwrap(), || {
            check_apart(egress).unwrap();
            sysctl::set(LOCAL, "1024 65000").unwrap();
            check_apart(egress).unwrap_err().to_string()
        });
        insta::assert_snapshot!(told.unwrap(), @r#"the ports for the way out, 61000-65534 (--egress-ports), are also for the node's own processes (net.ipv4.ip_local_port_range is "1024 65000"): expected ranges without a common port; choose others by --egress-ports, or sysctl -w net.ipv4.ip_local_port_range="32768 60999""#);
    }
}
