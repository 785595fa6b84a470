//! A change of rate while items wait.

use super::*;

impl Bucket {
    /// Another rate takes over at `now` (real time): the pacer of `config` and what hangs on it. It counts from the
    /// next item on, so whoever waits is given a new slot.
    pub fn change_rate(&mut self, now: u64, config: &Config) {
        self.advance(now);
        let old = std::mem::replace(&mut self.config.pacer, config.pacer.clone());
        // Bucket time by the old pacer, and the new one must not turn it back.
        let at = now.saturating_sub(self.accounts.forgiven).min(match self.leaving.front() {
            Some(front) if !keeps_real_time(&old, self.config.replays) => {
                old.ceil_ns(front.due).saturating_add(self.config.catch_up)
            }
            _ => NEVER,
        });
        self.config.catch_up = config.catch_up;
        self.config.capacity = config.capacity;
        let pacer = &self.config.pacer;
        let ticks = pacer.ticks(at);
        let floor = pacer.ticks(at.saturating_sub(config.catch_up));
        for leaving in &mut self.leaving {
            leaving.due = pacer.rescale(leaving.due, &old).max(floor);
            leaving.step = pacer.rescale(leaving.step, &old);
        }
        if let Some(Open::Leaving(_, due)) = &mut self.open {
            *due = pacer.rescale(*due, &old).max(floor);
        }
        self.decided = pacer.rescale(self.decided, &old);
        // What room there is now was not there before.
        self.changed = ticks;
        self.blank = Lane::new(pacer, Box::default());
        let ids: Vec<u32> = if self.keyed() { self.table.iter().copied().collect() } else { vec![0] };
        for id in ids {
            let lane = &mut self.lanes[id as usize];
            lane.state = self.config.pacer.take_over(&old, &lane.state, at);
            for waiting in &mut lane.line.waiting {
                waiting.admitted = ticks;
            }
            if lane.fresh_at != BUSY {
                self.idle.remove(&(lane.fresh_at, id));
                lane.fresh_at = BUSY;
            }
            self.refresh(id);
        }
        if self.config.count_bytes {
            self.config.layout = config.layout.clone();
            for waiting in std::mem::take(&mut self.lanes[0].line.waiting) {
                self.waiting_items -= waiting.run.count;
                for run in self.recut(waiting.run) {
                    self.waiting_items += run.count;
                    self.lanes[0].line.waiting.push_back(Waiting { run, ..waiting });
                }
            }
            for arrival in std::mem::take(&mut self.mouth) {
                let pieces = self.recut(arrival.run);
                self.mouth.extend(pieces.into_iter().map(|run| Arrival { run, key: None, ..arrival }));
            }
            self.refresh(0);
        }
        self.advance(now);
    }

    /// The chunks of `run` cut again to the size they have now, after a change of rate.
    pub(super) fn recut(&self, mut run: Run) -> SmallVec<[Run; 2]> {
        let Layout::Fixed(size) = self.config.layout else { return SmallVec::from_iter([run]) };
        let (len, size) = (run.slice.len() as u64, size as u64);
        if run.weight.len == size || len <= size.min(run.weight.len) {
            return SmallVec::from_iter([run]);
        }
        let whole = len / size;
        let head = run.slice.split_to((whole * size) as usize);
        let weight = Weight { len: size, ..run.weight };
        let head = Run { slice: head, count: whole, weight, ..run.clone() };
        let tail = Run { count: 1, weight: Weight { len: len - whole * size, ..run.weight }, ..run };
        [head, tail].into_iter().filter(|run| !run.slice.is_empty()).collect()
    }
}
