//! The runtime's environment variables (specification 1.1.0, section 2, "Parameters").

use std::fmt;
use std::path::PathBuf;

use manx_api::PodName;

use crate::error::{Code, Error};

/// The longest name of an interface (`IFNAMSIZ`, netdevice(7)), without the zero at its end.
const MAX_INTERFACE: usize = 15;
/// The namespace of a container that belongs to no pod.
const DEFAULT_NAMESPACE: &str = "default";

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Attach a container.
    Add,
    /// Detach a container.
    Del,
    /// Check whether a container is still attached as ADD left it.
    Check,
    /// Free the resources that belong to no container any more.
    Gc,
    /// Report whether a container could be attached.
    Status,
    /// Report the versions of the specification that the plugin supports.
    Version,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The environment variables, by name.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Verb {
    const ALL: [Self; 6] =
        [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    const fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    pub(crate) fn read(variables: Variables<'_>) -> Result<Self, Error> {
        let found = variables("CNI_COMMAND").unwrap_or_default();
        Self::ALL.into_iter().find(|verb| verb.name() == found).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            wrong("CNI_COMMAND", &format!("{found:?} is not one of {known}"))
        })
    }

    /// Whether a version of the specification has the verb.
    pub(crate) fn is_in(self, version: &str) -> bool {
        match self {
            Self::Gc | Self::Status => version == "1.1.0",
            Self::Add | Self::Del | Self::Check | Self::Version => true,
        }
    }
}

fn wrong(variable: &str, what: &str) -> Error {
    Error::new(Code::Environment, format!("{variable}: {what}"))
}

/// The subject of a verb.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parameters {
    /// The network, for GC and STATUS.
    Network,
    /// A container, for the other verbs.
    Container(Container),
}

/// The container that is the subject of a verb.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// `CNI_CONTAINERID`.
    pub id: String,
    /// `CNI_NETNS`, which DEL may lack.
    pub netns: Option<PathBuf>,
    /// `CNI_IFNAME`.
    pub interface: String,
    /// The pod that Kubernetes' runtimes name in `CNI_ARGS`. Otherwise a pod of the namespace `default` whose name is
    /// the container's id.
    pub pod: PodName,
}

impl Parameters {
    /// Reads the variables that the verb needs.
    pub(crate) fn read(verb: Verb, variables: Variables<'_>) -> Result<Self, Error> {
        if matches!(verb, Verb::Gc | Verb::Status | Verb::Version) {
            return Ok(Self::Network);
        }
        let given = |name| variables(name).filter(|value| !value.is_empty());
        let needed = |name| {
            given(name).ok_or_else(|| wrong(name, &format!("it is not set, and {verb} needs it")))
        };
        let id = needed("CNI_CONTAINERID")?;
        if !is_name(&id) {
            return Err(wrong("CNI_CONTAINERID", &format!("{id:?} {NAME_FORM}")));
        }
        let interface = needed("CNI_IFNAME")?;
        check_interface(&interface)?;
        let netns = match verb {
            Verb::Del => given("CNI_NETNS"),
            _ => Some(needed("CNI_NETNS")?),
        };
        let pod = pod(&id, &given("CNI_ARGS").unwrap_or_default())?;
        Ok(Self::Container(Container { id, netns: netns.map(PathBuf::from), interface, pod }))
    }
}

/// The form of a name, for messages.
pub(crate) const NAME_FORM: &str =
    "is no name: expected a letter or a digit, and then letters, digits, `_`, `.` or `-`";

/// Whether this may be the id of a container or the name of a network.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "_.-".contains(it))
}

/// Checks the kernel's rules for names (`dev_valid_name`).
fn check_interface(name: &str) -> Result<(), Error> {
    let is_valid = name.len() <= MAX_INTERFACE
        && !matches!(name, "." | "..")
        && !name.contains(|it: char| it == '/' || it == ':' || it.is_whitespace());
    if is_valid {
        return Ok(());
    }
    let form = "expected at most 15 bytes without `/`, `:` and blanks";
    Err(wrong("CNI_IFNAME", &format!("{name:?} is no name of an interface: {form}")))
}

/// Parses `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`. The keys of Kubernetes' runtimes are known. Another key is an error,
/// unless `IgnoreUnknown` allows it.
fn pod(container: &str, args: &str) -> Result<PodName, Error> {
    let wrong = |what: &str| wrong("CNI_ARGS", what);
    let (mut namespace, mut name) = (None, None);
    let (mut unknown, mut ignored) = (Vec::new(), false);
    for pair in args.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(wrong(&format!("{pair:?} is no KEY=VALUE")));
        };
        match key {
            "K8S_POD_NAMESPACE" => namespace = Some(value),
            "K8S_POD_NAME" => name = Some(value),
            // The pod's uid is not needed, and the container's id is already known.
            "K8S_POD_UID" | "K8S_POD_INFRA_CONTAINER_ID" => {}
            "IgnoreUnknown" => ignored = matches!(value, "1" | "true" | "True" | "TRUE"),
            _ => unknown.push(key),
        }
    }
    if !unknown.is_empty() && !ignored {
        let keys = unknown.join(", ");
        return Err(wrong(&format!(
            "{keys}: nothing is known of this, and IgnoreUnknown=1 is not there"
        )));
    }
    let [namespace, name] = [(namespace, DEFAULT_NAMESPACE), (name, container)]
        .map(|(given, usual)| given.filter(|it| !it.is_empty()).unwrap_or(usual));
    for (key, value) in [("K8S_POD_NAMESPACE", namespace), ("K8S_POD_NAME", name)] {
        if !is_name(value) {
            return Err(wrong(&format!("{key}={value} {NAME_FORM}")));
        }
    }
    Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(verb: Verb, given: &[(&str, &str)]) -> Result<Parameters, Error> {
        Parameters::read(verb, &|name| {
            given.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const USUAL: [(&str, &str); 3] =
        [("CNI_CONTAINERID", "c0ffee"), ("CNI_NETNS", "/run/netns/a"), ("CNI_IFNAME", "eth0")];

    fn with(key: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        [(key, value)].into_iter().chain(USUAL).collect()
    }

    #[test]
    fn a_pod_is_what_the_arguments_say_and_else_the_container() {
        let pod = |args| match read(Verb::Add, &with("CNI_ARGS", args)).unwrap() {
            Parameters::Container(container) => container.pod.to_string(),
            Parameters::Network => unreachable!(),
        };
        assert_eq!(pod(""), "default/c0ffee");
        assert_eq!(pod("K8S_POD_NAME=web"), "default/web");
        let all = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c0ffee;K8S_POD_UID=u;X=y";
        assert_eq!(pod(all), "shop/web-0");
    }

    #[test]
    fn a_detachment_needs_no_namespace_and_a_network_needs_nothing() {
        let without: Vec<_> = USUAL.into_iter().filter(|(key, _)| *key != "CNI_NETNS").collect();
        assert!(matches!(
            read(Verb::Del, &without).unwrap(),
            Parameters::Container(Container { netns: None, .. })
        ));
        for verb in [Verb::Gc, Verb::Status] {
            assert_eq!(read(verb, &[]).unwrap(), Parameters::Network);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |verb, given: &[(&str, &str)]| {
            let error = read(verb, given).unwrap_err();
            assert_eq!(error.code, Code::Environment);
            error.to_string()
        };
        let mut texts = vec![
            refused(Verb::Add, &[]),
            refused(Verb::Check, &[USUAL[0], USUAL[2]]),
            refused(Verb::Del, &[USUAL[0]]),
            Verb::read(&|_| Some("FETCH".to_owned())).unwrap_err().to_string(),
        ];
        for (key, value) in [
            ("CNI_CONTAINERID", "../a"),
            ("CNI_IFNAME", "an-interface-too-long"),
            ("CNI_IFNAME", "a b"),
            ("CNI_IFNAME", ".."),
            ("CNI_ARGS", "web"),
            ("CNI_ARGS", "IP=10.0.0.9"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=a/b"),
        ] {
            texts.push(refused(Verb::Add, &with(key, value)));
        }
        insta::assert_snapshot!(texts.join("\n"));
    }
}
