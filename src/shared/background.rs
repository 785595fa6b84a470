//! The thread that makes a leaker's blocking calls, so that a slow server never holds up what is already reserved.
//!
//! Answers lie ready until taken; `wake` is called after each, from that thread, for a leaker that sleeps.

use super::ledger::Answer;
use super::{Request, Returned, Store};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

enum Job {
    Reserve(Request),
    GiveBack(Vec<Returned>),
}

/// A store on a thread of its own.
#[derive(Debug)]
pub struct Background {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    ending: Arc<AtomicBool>,
}

impl Background {
    /// Starts the thread. `now` reads the clock the ledger is told times of.
    pub fn start<S: Store + Send + 'static>(
        mut store: S,
        now: impl Fn() -> u64 + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let (outbox, answers) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&ends);
        thread::Builder::new().name("leaky-shared".into()).spawn(move || {
            for job in inbox {
                match job {
                    Job::Reserve(request) => {
                        if ending.load(Ordering::Relaxed) {
                            continue;
                        }
                        let result = store.reserve(&request);
                        let answer = Answer { request, came_ns: now(), result };
                        if outbox.send(answer).is_err() {
                            return;
                        }
                        wake();
                    }
                    // Newest first: what one call cannot give back no earlier one can either. A failure costs others
                    // nothing but the units.
                    Job::GiveBack(all) => {
                        for returned in &all {
                            if store.give_back(returned).is_err() {
                                break;
                            }
                        }
                    }
                }
            }
        })?;
        Ok(Background { jobs, answers, ending: ends })
    }

    /// Makes a call; false if the thread is gone.
    pub fn call(&self, request: Request) -> bool {
        self.jobs.send(Job::Reserve(request)).is_ok()
    }

    /// Gives units back, unanswered.
    pub fn give_back(&self, returned: Vec<Returned>) {
        if !returned.is_empty() {
            // A thread that is gone has nothing to give back to.
            let _ = self.jobs.send(Job::GiveBack(returned));
        }
    }

    /// An answer, if one lies ready.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// Gives units back and waits for that as long as `patience` lets it: a server that hangs must not hold up the end.
    pub fn finish(self, returned: Vec<Returned>, patience: Duration) {
        self.ending.store(true, Ordering::Relaxed);
        self.give_back(returned);
        let Background { jobs, answers, .. } = self;
        drop(jobs);
        // The thread ends when its jobs are done, which closes this channel. Answers that still come are nobody's.
        while answers.recv_timeout(patience).is_ok_and(|answer| answer.result.is_ok()) {}
    }
}
