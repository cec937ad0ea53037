//! Manx and what it is compared with, measured in turn in one run: throughput, small packets, latency, and what an idle agent
//! costs.

use std::time::Duration;

use crate::comparison::{self, Comparison};
use crate::error::Error;
use crate::ground::Paths;
use crate::path::Between;
use crate::report::Figure;
use crate::run::{Listed, Run, Settings};
use crate::statistics::Pair;
use crate::traffic::WARM_UP;

/// Its rows.
pub fn rows(settings: &Settings) -> Vec<Listed> {
    let takes = of_a_pair(settings) * settings.rounds as u32;
    let listed = |it: &Comparison| Listed { name: it.name, words: it.words(), takes };
    comparison::ALL.iter().map(listed).collect()
}

/// How long a pair takes.
fn of_a_pair(settings: &Settings) -> Duration {
    2 * (settings.length + WARM_UP)
}

/// Measures what was chosen of them, ground by ground.
pub fn measure(run: &mut Run) -> Result<(), Error> {
    let chosen: Vec<&Comparison> =
        comparison::ALL.iter().filter(|comparison| run.wants(comparison.name)).collect();
    for together in chosen.chunk_by(|one, next| one.ground == next.ground) {
        let ground = together[0].ground;
        if let Some(why) = run.world.clone().or_else(|| ground.is_missing()) {
            for comparison in together {
                run.lacks(comparison.name, why.clone(), false)?;
            }
            continue;
        }
        run.progress.begin(&format!("{}: setting up", ground.words()));
        let built = Paths::build(ground, run.settings.rules, run.settings.cores)
            .and_then(|paths| idle(&paths).map(|remarks| (paths, remarks)));
        let paths = match built {
            Ok((paths, remarks)) => {
                run.report.remarks.extend(remarks);
                paths
            }
            Err(error) => {
                for comparison in together {
                    run.lacks(comparison.name, error.to_string(), true)?;
                }
                continue;
            }
        };
        for comparison in together {
            match of_one(run, comparison, &paths) {
                Ok(figure) => run.found(figure)?,
                Err(error) => run.lacks(comparison.name, error.to_string(), true)?,
            }
        }
        match paths.manx.let_run(true).and_then(|()| paths.accounts()) {
            Ok(remarks) => run.report.remarks.extend(remarks),
            // What was measured of it is not to be believed either.
            Err(error) => {
                for comparison in together {
                    run.lacks(
                        comparison.name,
                        format!("its agents give no account: {error}"),
                        true,
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn of_one(run: &Run, comparison: &Comparison, paths: &Paths) -> Result<Figure, Error> {
    let settings = &run.settings;
    run.progress.begin(&comparison.words());
    let pairs = (1..=settings.rounds)
        .map(|round| {
            let pair = comparison.pair(paths, settings.length)?;
            let Pair { beside, manx } = pair;
            let of = format!("{} {round}/{}", comparison.name, settings.rounds);
            let said = format!("{of}: {beside:.2}, Manx {manx:.2}");
            run.progress.step(said, of_a_pair(settings));
            Ok(pair)
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let Comparison { name, ground, goal, .. } = comparison;
    let what = comparison.what().to_owned();
    Figure::of_pairs(name, ground.words(), what, comparison.unit(), &pairs, *goal)
        .ok_or_else(|| Error::Nothing("no rounds were asked for".to_owned()))
}

/// What the agents cost before any traffic.
fn idle(paths: &Paths) -> Result<Vec<String>, Error> {
    let Between::Manx(cluster) = &paths.manx.between else { return Ok(Vec::new()) };
    if cluster.is_busy() {
        return Ok(Vec::new());
    }
    let settled = Duration::from_secs(1);
    std::thread::sleep(settled);
    let usage = cluster.usage(Duration::from_secs(2))?;
    Ok(usage
        .iter()
        .map(|(core, mib)| {
            format!(
                "idle agent ({}): {:.1} % of a core (goal < 2), {mib:.0} MiB resident (goal < 64)",
                paths.ground.words(),
                core * 100.0
            )
        })
        .collect())
}
