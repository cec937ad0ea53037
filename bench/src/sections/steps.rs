//! Rows that measure a computation in several steps. There is a figure for the time of each step, and one for the sum.

use std::time::Duration;

use crate::error::{Error, Failure};
use crate::report::figures::Figure;
use crate::report::goal::Goal;
use crate::run::{ListedRow, Run};

/// The number of times that the computation is made.
const TIMES: usize = 5;

/// The time of each step.
pub(super) type Steps = Vec<(&'static str, Duration)>;

/// A row whose measurement consists of steps.
#[derive(Clone, Copy)]
pub(super) struct StepsRow {
    pub(super) name: &'static str,
    /// The heading of its figures.
    pub(super) section: &'static str,
    pub(super) description: &'static str,
    /// The estimated time of the measurement.
    pub(super) estimate: Duration,
    /// The longest time that all steps together may take.
    pub(super) goal: Duration,
}

impl StepsRow {
    /// The entry in the list of rows.
    pub(super) fn listed(&self) -> ListedRow {
        ListedRow::new(self.name, self.description, self.estimate)
    }

    pub(super) fn measure(
        &self,
        run: &mut Run,
        answer: impl FnMut() -> Result<Steps, Failure>,
    ) -> Result<(), Error> {
        let Self { name, description, .. } = self;
        run.progress.begin(&format!("{name}: {description}"));
        run.add_measured(name, self.figures(answer))?;
        run.progress.step(format!("{name}: done"), self.estimate);
        Ok(())
    }

    fn figures(
        &self,
        mut answer: impl FnMut() -> Result<Steps, Failure>,
    ) -> Result<Vec<Figure>, Failure> {
        let mut times: Vec<(&'static str, Vec<Duration>)> = Vec::new();
        for _ in 0..TIMES {
            let mut steps = answer()?;
            steps.push(("in all", steps.iter().map(|(_, time)| *time).sum()));
            for (what, time) in steps {
                match times.iter_mut().find(|(of, _)| *of == what) {
                    Some((_, times)) => times.push(time),
                    None => times.push((what, vec![time])),
                }
            }
        }
        let goal = Goal::AtMost(self.goal.as_secs_f64() * 1e3);
        let head = format!("{}: {}", self.section, self.description);
        let figures = times.into_iter().filter_map(|(what, times)| {
            let goal = (what == "in all").then_some(goal);
            Figure::from_times(self.name, &head, what, "ms", &times, goal)
        });
        Ok(figures.collect())
    }
}
