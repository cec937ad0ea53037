//! `manx policy matrix`: the ports on which each party reaches every other party, in several forms.
//!
//! The forms are `text`, `csv`, `json`, `markdown`, `html` (a whole page) and `svg` (a graph). `notes` has the sentences
//! that hold for all pairs.

mod csv;
mod graph;
mod html;
mod json;
mod markdown;
mod notes;
mod shown;
mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};

use self::shown::Shown;
use super::assume::{Assume, Completed};
use super::explain::UPLINK;
use super::manifests::{Manifests, report_invalid};
use crate::Error;
use crate::output;
use manx_analysis::explain::Explainer;
use manx_analysis::matrix::{Filter, Matrix, View};

/// The settings of `manx policy matrix`.
#[derive(Debug, Clone, Args)]
pub struct MatrixSettings {
    /// Only these sources: NAMESPACE/POD, NAMESPACE/WORKLOAD, node, node/NAME, outside, a net or
    /// address (the parties outside that hold or overlap it), or svc/NAMESPACE/NAME (its
    /// endpoints); * and ? stand for any text and any character. May be repeated
    #[arg(long, value_name = "PATTERN")]
    pub from: Vec<String>,
    /// Only these destinations, in the same form. May be repeated
    #[arg(long, value_name = "PATTERN")]
    pub to: Vec<String>,
    /// Only pairs with an end in this namespace. May be repeated
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Vec<String>,
    /// Show for each pair what decides at either end, and where it is written
    #[arg(long)]
    pub why: bool,
    /// Form of the matrix
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Form,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub assume: Assume,
    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would take it for the command's own description")]
    pub manifests: Manifests,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Form {
    /// A table, or a list if a table is too wide
    #[default]
    Text,
    /// A line for each pair
    Csv,
    /// JSON for programs
    Json,
    /// A table for documents
    Markdown,
    /// One page that needs no other file: filter by namespace, click a cell
    Html,
    /// A graph
    Svg,
}

/// Prints the matrix. Exit code 0 if it could be made, 2 if not everything can be read or no party
/// matches.
pub fn run(asked: &MatrixSettings) -> Result<(), Error> {
    let contents = asked.manifests.read()?;
    report_invalid(&contents)?;
    let Some(completed) = asked.assume.complete(contents)? else { return Ok(()) };
    let (text, notes) = render(asked, &completed)?;
    if asked.output == Form::Csv {
        for note in notes {
            // This fails if standard error is closed, and then there is no reader.
            let _ = writeln!(io::stderr(), "{note}");
        }
    }
    output::print(&text)
}

/// Replaces each `svc/NAMESPACE/NAME` in the patterns by the Service's endpoints.
fn without_services(patterns: &[String], completed: &Completed) -> Result<Vec<String>, Error> {
    let Completed { contents, assumed } = completed;
    let is_service = |pattern: &String| pattern.starts_with("svc/");
    if !patterns.iter().any(is_service) {
        return Ok(patterns.to_vec());
    }
    let explainer = Explainer::new(contents, &assumed.addresses, UPLINK);
    let (services, mut found): (Vec<String>, Vec<String>) =
        patterns.iter().cloned().partition(is_service);
    for service in &services {
        if let Some((service, port)) = service.split_once(':') {
            return Err(Error::Invalid(format!(
                "{service}:{port} names a port, which belongs only to --to of `manx policy explain`: expected {service}"
            )));
        }
        found.extend(explainer.ends(service).map_err(Error::Invalid)?);
    }
    Ok(found)
}

/// The text of a form, and the notes, which every form but CSV contains.
fn render(asked: &MatrixSettings, completed: &Completed) -> Result<(String, Vec<String>), Error> {
    let Completed { contents, assumed } = completed;
    let filter = Filter {
        from: without_services(&asked.from, completed)?,
        to: without_services(&asked.to, completed)?,
        namespaces: asked.namespace.clone(),
    };
    let matrix = Matrix::with_nets(contents, &filter.nets());
    let view = View::new(&matrix, &filter);
    if matrix.pods == 0 {
        return Err(Error::Invalid(notes::no_pods(&matrix, contents)));
    }
    for (empty, option) in [
        (view.sources.is_empty(), "--from and --namespace"),
        (view.destinations.is_empty(), "--to and --namespace"),
    ] {
        if empty {
            return Err(Error::Invalid(format!(
                "no party fits {option}; expected NAMESPACE/POD, NAMESPACE/WORKLOAD, node, outside, a net or an address, such as {}",
                matrix
                    .parties
                    .iter()
                    .filter_map(|party| party.names().pop())
                    .take(3)
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        }
    }
    let notes = notes::notes(&matrix, &assumed.addresses);
    let shown = Shown { matrix: &matrix, view, why: asked.why, notes };
    let text = match asked.output {
        Form::Text => text::render(&shown),
        Form::Csv => csv::render(&shown),
        Form::Json => json::render(&shown)?,
        Form::Markdown => markdown::render(&shown),
        Form::Html => html::render(&shown, contents).map_err(Error::Failed)?,
        Form::Svg => svg::render(&shown),
    };
    Ok((text, shown.notes))
}
