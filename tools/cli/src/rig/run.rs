//! `manx rig run`, `apply` and `exec`.

use std::io::{IsTerminal, Write as _};
use std::path::Path;

use clap::ValueEnum;

use super::screen::Screen;
use super::settings::{Apply, Delete, Exec, Run};
use crate::Error;
use crate::chosen_rig::{chosen_to_change, state};
use crate::output::{Output, is_coloured, print, print_json};
use manx_agent::pod_device::Preference;
use manx_api::Device;
use manx_datastore::Store;
use manx_linux::doctor::{self, Capability};
use manx_linux::private;
use manx_rig::caller::{self, Listener, Running};
use manx_rig::plan::Plan;
use manx_rig::plan::input::{self, Input, Manifests};
use manx_rig::plan::policy_reference::full_name;
use manx_rig::plan::prober::Prober;
use manx_rig::report::Report;
use manx_rig::report::event::Request;
use manx_rig::report::render;
use manx_rig::report::table::Style;
use manx_rig::world::enter;
use manx_rig::world::live;
use manx_rig::world::pasta::{self, PastaError};
use manx_rig::world::setup::{Setup, State};
use manx_rig::world::supervisor::Bounds;
use manx_rig::world::underlay::Names;
use manx_rig::world::workdir::{Workdir, WorkdirLock};

/// The width of a report if standard output is no terminal.
const PIPED_WIDTH: u16 = 120;

/// `manx rig run`.
pub(super) fn run(settings: &Run) -> Result<(), Error> {
    let input = input::read(&settings.input, settings.recursive, settings.assume.options())?;
    if settings.assume.show_assumed {
        return print(&input.assumed.yaml());
    }
    let mut screen = Screen::new();
    let of_addresses = input.assumed.note_of_addresses();
    for note in input.assumed.notes.iter().chain(&of_addresses) {
        screen.note(&format!("assumed: {note}"));
    }
    for warning in &input.warnings {
        screen.note(warning);
    }
    let workdir = Workdir::from_name(&rig_name(settings)?)?;
    let held = workdir.create()?;
    let environment = match prepare(settings, input, &workdir).and_then(|()| check_environment()) {
        Ok(environment) => environment,
        Err(error) => {
            workdir.remove()?;
            return Err(error);
        }
    };
    let bounds = Bounds { timeout: settings.timeout, ttl: settings.ttl };
    let checked = build_and_check(settings, &workdir, held, bounds, &mut screen);
    screen.clear();
    let report = checked?;
    let is_veth = report.probers.values().any(|prober| prober.device == Some(Device::Veth));
    if is_veth
        && settings.pod_device == Preference::Auto
        && let Some(lack) = environment.lack(Capability::Tun)
    {
        // The message says why pods are attached by veth pairs, and how to get TUN devices.
        screen.note(&lack.to_string());
    }
    finish(&report, settings.output, true)
}

/// Examines the environment, as `manx doctor` does. If something prevents the rig, the command fails with the text of
/// `manx doctor`.
fn check_environment() -> Result<doctor::Report, Error> {
    let report = crate::doctor::examine()?;
    match report.obstacle() {
        None => Ok(report),
        Some(lack) => Err(lack.into()),
    }
}

fn build_and_check(
    settings: &Run,
    workdir: &Workdir,
    held: WorkdirLock,
    bounds: Bounds,
    screen: &mut Screen,
) -> Result<Report, Error> {
    let running = Running::start(workdir, held, bounds, screen)?;
    let report = caller::send_request(workdir, &Request::Check, screen)?;
    if settings.keep {
        running.keep().map_err(|error| Error::Failed(error.to_string()))?;
        let name = workdir.name();
        screen.note(&format!(
            "rig {name} is left running for {} s: `manx rig exec --rig {name} POD -- CMD`, \
             `manx rig down {name}`",
            settings.ttl.as_secs()
        ));
    }
    Ok(report)
}

/// The rig's name: the given one, or the name of the directory or file without the characters that are not allowed.
fn rig_name(settings: &Run) -> Result<String, Error> {
    if let Some(name) = &settings.name {
        return Ok(name.clone());
    }
    let input = &settings.input;
    let name = if input == Path::new("-") {
        String::new()
    } else {
        let path = input
            .canonicalize()
            .map_err(|error| Error::Invalid(format!("{}: {error}", input.display())))?;
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.unwrap_or_default().to_string_lossy().into_owned()
    };
    let legal = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.chars().filter(legal).take(40).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    Ok(if name.is_empty() { "rig".to_owned() } else { name.to_owned() })
}

/// Fills the rig's folder, and makes the plan, so that an input from which no rig can be made is refused at once.
fn prepare(settings: &Run, mut input: Input, workdir: &Workdir) -> Result<(), Error> {
    for policy in &settings.sabotage {
        let (id, object) = input
            .objects
            .withhold(policy)
            .map_err(|error| Error::Invalid(format!("--sabotage {policy}: {error}")))?;
        live::write(&workdir.withheld(), &id, &object)?;
    }
    input.objects.write(&workdir.manifests())?;
    if settings.no_samples {
        input.settings.samples = false;
    }
    let contents = Store::load(workdir.manifests());
    let plan = Plan::make(&contents, &input.settings)?;
    if settings.world.is_some() {
        pasta::check(&plan).map_err(|error| match error {
            PastaError::NotPossible(_) => Error::Invalid(error.to_string()),
            _ => Error::Environment(error.to_string()),
        })?;
    }
    let exports = private::temporary().map_err(|error| {
        Error::Environment(format!(
            "what a deviation leaves goes to the folder for temporary files: {error}; set TMPDIR to a folder of your own"
        ))
    })?;
    let setup = Setup {
        source: settings.input.clone(),
        settings: input.settings,
        agent_arguments: agent_arguments(settings),
        exports,
        pasta: settings.world.is_some(),
    };
    Ok(setup.write(workdir)?)
}

fn agent_arguments(settings: &Run) -> Vec<String> {
    let uplink_mode = settings.uplink_mode.to_possible_value();
    vec![
        "--pod-device".to_owned(),
        settings.pod_device.name().to_owned(),
        "--uplink-mode".to_owned(),
        uplink_mode.map(|mode| mode.get_name().to_owned()).unwrap_or_default(),
        "--workers".to_owned(),
        settings.workers.to_string(),
    ]
}

/// `manx rig apply`.
pub(super) fn apply(settings: &Apply) -> Result<(), Error> {
    let Manifests { objects, warnings, .. } = input::read_paths(&settings.files)?;
    let workdir = chosen_to_change(settings.rig.as_deref())?;
    let mut screen = Screen::new();
    for warning in &warnings {
        screen.note(warning);
    }
    let request = Request::Apply(objects.0.into_values().collect());
    let report = caller::send_request(&workdir, &request, &mut screen);
    screen.clear();
    finish(&report?, settings.output, settings.table)
}

/// `manx rig delete`.
pub(super) fn delete(settings: &Delete) -> Result<(), Error> {
    let mut words = Vec::new();
    for what in &settings.what {
        if what == "-" || Path::new(what).exists() {
            let Manifests { objects, .. } = input::read_paths(&[what.into()])?;
            words.extend(objects.0.keys().map(full_name));
        } else {
            words.push(what.clone());
        }
    }
    let workdir = chosen_to_change(settings.rig.as_deref())?;
    let mut screen = Screen::new();
    let report = caller::send_request(&workdir, &Request::Delete(words), &mut screen);
    screen.clear();
    finish(&report?, settings.output, settings.table)
}

/// Prints a report. After an earlier run the text has the changes since then, and the truth table
/// only with `table`. Returns an error after a deviation.
pub(super) fn finish(report: &Report, output: Output, table: bool) -> Result<(), Error> {
    match output {
        Output::Json => print_json(report)?,
        Output::Text => {
            let width = console_width().unwrap_or(PIPED_WIDTH);
            print(&render::text(report, Style { colour: is_coloured(), width, whole: table }))?;
        }
    }
    if report.as_expected { Ok(()) } else { Err(Error::Deviation) }
}

fn console_width() -> Option<u16> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    comfy_table::Table::new().width()
}

/// `manx rig exec`. It ends with the exit code of the command in the rig.
pub(super) fn exec(settings: &Exec) -> Result<(), Error> {
    let workdir = chosen_to_change(settings.rig.as_deref())?;
    let state = state(&workdir)?;
    let prober = Prober::from(settings.party.clone());
    let node = host_of(&state, &prober);
    if let Some(node) = &node {
        // This fails if standard error is closed, and then there is no reader.
        let _ =
            writeln!(std::io::stderr(), "manx: {prober} is on the network of {node}: run there");
    }
    let place = node.as_ref().unwrap_or(&prober);
    let netns = netns(&state, &Names::new(&workdir.names()), place).ok_or_else(|| {
        Error::Invalid(format!(
            "there is no {prober} in rig {}: `manx rig status` shows what there is",
            state.name
        ))
    })?;
    let status = enter::run_in_rig(&workdir, &netns, &settings.command)
        .map_err(|error| Error::Failed(error.to_string()))?;
    match (status.success(), status.code()) {
        (true, _) => Ok(()),
        (false, Some(code)) => std::process::exit(code),
        (false, None) => Err(Error::Failed(format!("the command has ended: {status}"))),
    }
}

/// The node of a pod that is on its node's network; `None` for every other prober.
fn host_of(state: &State, prober: &Prober) -> Option<Prober> {
    let Prober::Pod(pod) = prober else { return None };
    let host = state.host_pods.iter().find(|known| known.name == *pod);
    host.map(|host| Prober::Node(host.node.clone()))
}

fn netns(state: &State, names: &Names, prober: &Prober) -> Option<std::path::PathBuf> {
    match prober {
        Prober::Outside => Some(names.outside()),
        Prober::Node(node) => {
            state.nodes.iter().position(|known| known.name == *node).map(|i| names.node(i))
        }
        Prober::Pod(pod) => {
            state.pods.iter().position(|known| known.name == *pod).map(|i| names.pod(i))
        }
    }
}
