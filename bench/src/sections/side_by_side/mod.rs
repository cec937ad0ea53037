//! Compares Manx with the kernel and other programs, measured alternately in one run: throughput, small packets,
//! latency, and the cost of an idle agent.

mod rows;
mod scenario;

use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::path::ends::Path as _;
use crate::path::traffic::WARM_UP;
use crate::report::figures::Figure;
use crate::report::statistics::Pair;
use crate::run::{ListedRow, Run, Settings};

use rows::{ROWS, Row};
use scenario::Paths;

/// The rows of this section.
pub fn rows(settings: &Settings) -> Vec<ListedRow> {
    let estimate = pair_estimate(settings) * settings.rounds as u32;
    ROWS.iter().map(|row| ListedRow::new(row.name, &row.description(), estimate)).collect()
}

/// The time of a pair of measurements.
fn pair_estimate(settings: &Settings) -> Duration {
    2 * (settings.length + WARM_UP)
}

/// Measures the chosen rows, scenario by scenario.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    let chosen: Vec<&Row> = ROWS.iter().filter(|row| run.wants(row.name)).collect();
    for rows in chosen.chunk_by(|one, next| one.scenario == next.scenario) {
        let why = run.no_namespaces.clone().or_else(|| rows[0].scenario.why_missing());
        match why {
            Some(why) => add_missing(run, rows, &why, false)?,
            None => measure_scenario(run, rows)?,
        }
    }
    Ok(())
}

/// Measures the rows of one scenario.
fn measure_scenario(run: &mut Run, rows: &[&Row]) -> Result<(), Error> {
    let scenario = rows[0].scenario;
    run.progress.begin(&format!("{}: setting up", scenario.description()));
    let built = Paths::build(scenario, run.settings.rules, run.settings.cores)
        .and_then(|paths| idle_costs(&paths).map(|remarks| (paths, remarks)));
    let (paths, remarks) = match built {
        Ok(built) => built,
        Err(error) => return add_missing(run, rows, &error.to_string(), true),
    };
    run.report.remarks.extend(remarks);
    for row in rows {
        let measured = measure_row(run, row, &paths);
        run.add_measured(row.name, measured.map(Some))?;
    }
    match paths.manx.set_running(true).and_then(|()| paths.counts()) {
        Ok(remarks) => run.report.remarks.extend(remarks),
        // After this error, the other figures of these rows cannot be trusted.
        Err(error) => {
            add_missing(run, rows, &format!("its agents give no account: {error}"), true)?;
        }
    }
    Ok(())
}

fn add_missing(run: &mut Run, rows: &[&Row], why: &str, failed: bool) -> Result<(), Error> {
    rows.iter().try_for_each(|row| run.add_missing(row.name, why.to_owned(), failed))
}

fn measure_row(run: &Run, row: &Row, paths: &Paths) -> Result<Figure, Error> {
    let settings = &run.settings;
    run.progress.begin(&row.description());
    let pairs = (1..=settings.rounds)
        .map(|round| {
            let pair = row.measure_pair(paths, settings.length)?;
            let Pair { beside, manx } = pair;
            let round = format!("{} {round}/{}", row.name, settings.rounds);
            let text = format!("{round}: {beside:.2}, Manx {manx:.2}");
            run.progress.step(text, pair_estimate(settings));
            Ok(pair)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let (head, what) = (row.scenario.description(), row.what().to_owned());
    Figure::from_pairs(row.name, head, what, row.unit(), &pairs, row.goal)
        .ok_or_else(|| Error::Nothing("no rounds were asked for".to_owned()))
}

/// The cost of the agents before any traffic, as one remark for each agent. Agents that never sleep have no such
/// remark.
fn idle_costs(paths: &Paths) -> Result<Vec<String>, Error> {
    if paths.manx.is_busy() {
        return Ok(Vec::new());
    }
    // An agent needs time to settle before it is idle.
    thread::sleep(Duration::from_secs(1));
    let usage = paths.manx.usage(Duration::from_secs(2))?;
    let remark = |(core, mib): &(f64, f64)| {
        format!(
            "idle agent ({}): {:.1} % of a core (goal < 2), {mib:.0} MiB resident (goal < 64)",
            paths.scenario.description(),
            core * 100.0
        )
    };
    Ok(usage.iter().map(remark).collect())
}
