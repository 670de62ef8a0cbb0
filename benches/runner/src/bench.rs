//! What all lines of a run share: options, lengths, files, the report.

use std::{
    cell::{Cell, RefCell},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use crate::{
    Options,
    audience::{self, Body},
    report::{Figure, Report},
    wrk::Round,
};

/// Before anything is measured: caches fill, every viewer has beaten once.
pub(crate) const WARM_UP: Duration = Duration::from_secs(3);

/// A run.
pub(crate) struct Bench {
    pub(crate) options: Options,
    /// Files of this run alone; gone when it ends.
    pub(crate) folder: PathBuf,
    /// wrk's script.
    pub(crate) script: PathBuf,
    report: RefCell<Report>,
    runs: Cell<u32>,
}

impl Bench {
    pub(crate) fn new(options: Options, report: Report) -> anyhow::Result<Self> {
        let folder = options.output.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(options.output.join("logs"))?;
        let script = folder.join("requests.lua");
        fs::write(&script, include_str!("requests.lua"))?;
        Ok(Self { options, folder, script, report: RefCell::new(report), runs: Cell::new(0) })
    }

    /// Adds a route under load to the report.
    pub(crate) fn route(&self, what: &str, ratio: Option<f64>, rounds: Vec<Round>) {
        self.report.borrow_mut().route(what, ratio, rounds);
    }

    /// Adds a figure to the report.
    pub(crate) fn figure(&self, figure: Figure) {
        self.report.borrow_mut().figure(figure);
    }

    /// Adds what is in no table.
    pub(crate) fn raw(&self, name: &str, value: impl Serialize) {
        self.report.borrow_mut().raw(name, value);
    }

    /// Writes what there is so far, so that a run that is stopped leaves it; where, and the tables.
    pub(crate) fn save(&self) -> anyhow::Result<(PathBuf, String)> {
        let report = self.report.borrow();
        Ok((report.save()?.to_owned(), report.tables()))
    }

    /// A round's length.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_secs(if self.options.quick { 2 } else { 4 })
    }

    /// How often A and B take turns.
    pub(crate) fn pairs(&self) -> usize {
        if self.options.quick { 1 } else { 3 }
    }

    /// Viewers and videos of the large measurements: all, or a tenth of them.
    pub(crate) fn scaled(&self, number: u32) -> u32 {
        if self.options.quick { number / 10 } else { number }
    }

    /// A number for a round, so that no two of them send the same ids.
    pub(crate) fn next_run(&self) -> u32 {
        self.runs.set(self.runs.get() + 1);
        self.runs.get()
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.options.output.join("logs").join(format!("{name}.log"))
    }

    /// A file of requests, made when it is first needed.
    pub(crate) fn requests(&self, body: Body) -> anyhow::Result<PathBuf> {
        let name = match body {
            Body::Viewer => "viewers",
            Body::NewPlay => "new-plays",
            Body::NewViewer => "new-viewers",
            Body::OldPlay => "old-plays",
            Body::None => "videos",
        };
        self.file(name, || audience::requests(body))
    }

    /// A file of requests for lists of `many` videos.
    pub(crate) fn lists(&self, many: usize) -> anyhow::Result<PathBuf> {
        self.file(&format!("lists-of-{many}"), || audience::lists(many))
    }

    /// A file of requests of gateways, of `many` beats each.
    pub(crate) fn batches(&self, many: usize) -> anyhow::Result<PathBuf> {
        self.file(&format!("batches-of-{many}"), || audience::batches(many))
    }

    fn file(&self, name: &str, text: impl FnOnce() -> String) -> anyhow::Result<PathBuf> {
        let path: PathBuf = self.folder.join(Path::new(name).with_extension("tsv"));
        if !path.exists() {
            fs::write(&path, text())?;
        }
        Ok(path)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // What stays is taken away with target/.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
