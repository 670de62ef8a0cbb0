//! Where a test can make the service die, hang or fail: around each step that a crash may part from the
//! next one. Only a build with the feature `failpoints` has this; in any other nothing of it is left.
//!
//! `FAILPOINTS="flush.commit=1*return(lost)"` in the environment sets them, in the `fail` crate's
//! language; what a point can be told to return are the names in `Fault::parse`.

#[cfg(not(feature = "failpoints"))]
pub(crate) use self::off::{boundary, step};
#[cfg(feature = "failpoints")]
pub(crate) use self::on::{boundary, set_by_environment, step};

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for tests: a release build must not have them");

#[cfg(not(feature = "failpoints"))]
mod off {
    use std::future::{Future, Ready, ready};

    use crate::error::Part;

    /// `work`, as it is.
    pub(crate) fn step<W: Future>(_name: &'static str, _part: Part, work: W) -> W {
        work
    }

    /// Nothing.
    pub(crate) fn boundary(_name: &'static str) -> Ready<()> {
        ready(())
    }
}

#[cfg(feature = "failpoints")]
mod on {
    use std::future::{Future, pending};

    use crate::error::{Part, StoreError};

    /// What can befall a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        /// The process dies before the step.
        KillBefore,
        /// The process dies when the step is done.
        KillAfter,
        /// The step isn't done and says so.
        Error,
        /// The step is done, and its answer is lost.
        Lost,
        /// The process is stopped before the step, until somebody continues it.
        StallBefore,
        /// The process is stopped when the step is done, until somebody continues it.
        StallAfter,
        /// The task stands still for ever.
        Hang,
    }

    impl Fault {
        fn parse(name: &str) -> Self {
            match name {
                "kill-before" => Self::KillBefore,
                "kill-after" => Self::KillAfter,
                "error" => Self::Error,
                "lost" => Self::Lost,
                "stall-before" => Self::StallBefore,
                "stall-after" => Self::StallAfter,
                "hang" => Self::Hang,
                other => panic!("FAILPOINTS: there is no fault {other:?}"),
            }
        }
    }

    /// Takes up what the environment says, once, before anything runs.
    pub(crate) fn set_by_environment() {
        // Dropping the scenario would unset it again; it is meant for the life of the process.
        std::mem::forget(fail::FailScenario::setup());
    }

    /// Does `work`, unless a test wants something to go wrong with it.
    pub(crate) fn step<T, E: From<StoreError>>(
        name: &'static str,
        part: Part,
        work: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, E>> {
        // Boxed, or each point on the way would double the size of all that it stands in.
        let work = Box::pin(work);
        async move {
            let Some(fault) = asked(name) else { return work.await };
            let failed = || Err(StoreError::unavailable(part, format!("failpoint {name}")).into());
            match fault {
                Fault::KillBefore => std::process::abort(),
                Fault::Hang => pending().await,
                Fault::Error => return failed(),
                Fault::StallBefore => stall(),
                Fault::KillAfter | Fault::StallAfter | Fault::Lost => {}
            }
            let done = work.await;
            match fault {
                Fault::KillAfter => std::process::abort(),
                Fault::StallAfter => stall(),
                Fault::Lost => return done.and_then(|_| failed()),
                _ => {}
            }
            done
        }
    }

    /// Passes a boundary that can't fail, only be the last thing that happens.
    pub(crate) async fn boundary(name: &'static str) {
        match asked(name) {
            Some(Fault::KillBefore | Fault::KillAfter) => std::process::abort(),
            Some(Fault::StallBefore | Fault::StallAfter) => stall(),
            Some(Fault::Hang) => pending().await,
            Some(Fault::Error | Fault::Lost) => panic!("failpoint {name}: nobody can be told of an error"),
            None => {}
        }
    }

    /// Stops the whole process, as a suspended machine does.
    fn stall() {
        let pid = std::process::id().to_string();
        let stopped = std::process::Command::new("kill").args(["-STOP", &pid]).status();
        assert!(stopped.is_ok_and(|status| status.success()), "a failpoint can't stop the process");
    }

    fn asked(name: &'static str) -> Option<Fault> {
        let fault = (|| {
            fail::fail_point!(name, |fault| fault.as_deref().map(Fault::parse));
            None
        })()?;
        tracing::warn!(failpoint = name, "failpoint {name}: {fault:?}");
        Some(fault)
    }
}
